// What the kernel sends of several runs, and what the view of them makes of it. Nothing here draws.
import type { ComparedPair, ComparedResult, MetricCurve } from "../lib/states";
import { aligned, union } from "./curves";

export type Numbers = readonly (number | null)[];

export const metricOf = (result: ComparedResult, metric: string): MetricCurve | undefined =>
  result.metrics.find((each) => each.metric === metric);

/** Numbers of the results, the best first; those without a final value last. */
export function ranked(results: readonly ComparedResult[], metric: string, minimize: boolean): number[] {
  const final = (index: number) => metricOf(results[index], metric)?.final ?? null;
  return results
    .map((_, index) => index)
    .sort((one, two) => {
      const [a, b] = [final(one), final(two)];
      if (a === null || b === null) return Number(a === null) - Number(b === null) || one - two;
      return (minimize ? a - b : b - a) || one - two;
    });
}

export type Spread = "interval" | "all" | "seeds" | "none";

export const SPREADS: readonly (readonly [Spread, string])[] = [
  ["interval", "interval of the mean"],
  ["all", "minimum to maximum"],
  ["seeds", "every seed"],
  ["none", "none"],
];

const known = (values: readonly (number | null | undefined)[]): number[] =>
  values.filter((value): value is number => value !== null && value !== undefined);

/** Lower and upper edge of a band; null where there is none, as with a single seed. */
export function edgesOf(curve: MetricCurve, spread: Spread): [Numbers, Numbers] | null {
  if (spread === "interval") return curve.low.some((value) => value !== null) ? [curve.low, curve.high] : null;
  if (spread !== "all" || curve.seeds.length < 2) return null;
  const at = (pick: (values: number[]) => number) =>
    curve.rounds.map((_, place) => {
      const values = known(curve.seeds.map((seed) => seed[place]));
      return values.length ? pick(values) : null;
    });
  return [at((values) => Math.min(...values)), at((values) => Math.max(...values))];
}

/** Values on the axis that all drawn curves share. */
export const axisOf = (curves: readonly MetricCurve[]): number[] =>
  union(curves.map(({ rounds }) => rounds as number[]));
export const onAxis = (curve: MetricCurve, values: Numbers, axis: readonly number[]): (number | null)[] =>
  aligned(curve.rounds, values, axis);

/** A test of two results, turned so that it tells of `name` against the other. */
export interface Against {
  other: string;
  difference: number | null;
  low: number | null;
  high: number | null;
  p: number | null;
  pairs: number;
}

export function against(pairs: readonly ComparedPair[], name: string): Against[] {
  return pairs.flatMap((pair) => {
    const { low, high, difference, p_corrected: p, pairs: count } = pair;
    if (pair.a === name) return [{ other: pair.b, difference, low, high, p, pairs: count }];
    if (pair.b !== name) return [];
    const turned = (value: number | null) => (value === null ? null : -value);
    return [{ other: pair.a, difference: turned(difference), low: turned(high), high: turned(low), p, pairs: count }];
  });
}
