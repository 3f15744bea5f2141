// Curves of a run as the kernel sends them, and what charts make of them. Nothing here draws.

/** One metric over the rounds; bands are over clients. */
export interface Curve {
  name: string;
  round: number[];
  seconds: number[];
  mean: (number | null)[];
  least: (number | null)[];
  most: (number | null)[];
  /** 10th, 25th, 50th, 75th and 90th percentile. */
  percentiles: (number | null)[][];
  /** Whether clients differ at all. */
  spreads: boolean;
}

const POINT = 4;
export const PERCENTILES = [10, 25, 50, 75, 90] as const;
const SPREAD = 1 + PERCENTILES.length;

const finite = (value: number): number | null => (Number.isFinite(value) ? value : null);

function column(values: ArrayLike<number>, width: number, at: number): (number | null)[] {
  return Array.from({ length: Math.floor(values.length / width) }, (_, i) => finite(values[width * i + at]));
}

/** Rows of numbers to columns; `spread` may be missing. */
export function curveOf(name: string, points: ArrayLike<number>, spread: ArrayLike<number>): Curve {
  const [least, most] = [column(points, POINT, 2), column(points, POINT, 3)];
  const round = column(points, POINT, 0).map((value) => value ?? 0);
  const seconds = column(spread, SPREAD, 0).map((value) => value ?? 0);
  return {
    name,
    round,
    seconds: seconds.length === round.length ? seconds : round,
    mean: column(points, POINT, 1),
    least,
    most,
    percentiles: PERCENTILES.map((_, i) => column(spread, SPREAD, i + 1)),
    spreads: least.some((low, i) => low !== null && most[i] !== null && (most[i] as number) > low),
  };
}

export type BandKind = "80" | "50" | "all" | "none";

/** The lower and the upper edge of the band that is wished for. */
export function bandOf(curve: Curve, kind: BandKind): [(number | null)[], (number | null)[]] | null {
  if (!curve.spreads || kind === "none") return null;
  if (kind === "all") return [curve.least, curve.most];
  const [p10, p25, , p75, p90] = curve.percentiles;
  return kind === "80" ? [p10, p90] : [p25, p75];
}

export const BANDS: readonly (readonly [BandKind, string])[] = [
  ["80", "10th to 90th percentile"],
  ["50", "25th to 75th percentile"],
  ["all", "minimum to maximum"],
  ["none", "none"],
];

/** A logarithmic scale needs positive numbers only. */
export const canBeLog = (columns: readonly (readonly (number | null)[])[]): boolean =>
  columns.some((values) => values.some((value) => value !== null)) &&
  columns.every((values) => values.every((value) => value === null || value > 0));

/** `values`, given at `from`, at the places `to` of a common axis; null where there is none. */
export function aligned(
  from: readonly number[],
  values: readonly (number | null)[],
  to: readonly number[],
): (number | null)[] {
  const at = new Map(from.map((place, i) => [place, values[i]]));
  return to.map((place) => at.get(place) ?? null);
}

/** All places of several axes, sorted, each once. */
export const union = (axes: readonly (readonly number[])[]): number[] =>
  [...new Set(axes.flat())].sort((a, b) => a - b);

/** Mean, least and most of several curves at every place where any of them has a value. */
export function acrossSeeds(curves: readonly (readonly number[])[]): {
  mean: number[];
  least: number[];
  most: number[];
} {
  const length = Math.max(0, ...curves.map((curve) => curve.length));
  const rows = Array.from({ length }, (_, i) => curves.filter((curve) => i < curve.length).map((curve) => curve[i]));
  return {
    mean: rows.map((row) => row.reduce((sum, value) => sum + value, 0) / row.length),
    least: rows.map((row) => Math.min(...row)),
    most: rows.map((row) => Math.max(...row)),
  };
}

const FEWEST_VALUES = 20; // fewer values have no typical size

/** The top of a chart that a few peaks would flatten; null where all values fit. */
export function topWithoutPeaks(columns: readonly (readonly (number | null)[])[]): number | null {
  const values = columns.flatMap((column) => column.filter((value) => value !== null)).sort((a, b) => a - b);
  const typical = values[Math.floor(0.98 * (values.length - 1))] ?? 0;
  return values.length >= FEWEST_VALUES && typical > 0 && values[values.length - 1] > 3 * typical
    ? 1.15 * typical
    : null;
}
