// A roofline: what operations reached, by FLOPs per byte, below what the chip can do; both axes logarithmic.
import type { ChipRoofs } from "./states";

export interface Dot {
  index: number;
  intensity: number;
  rate: number;
  seconds: number;
}
export interface Frame {
  width: number;
  height: number;
  left: number;
  bottom: number;
}
export interface Axes {
  x(value: number): number;
  y(value: number): number;
  low: readonly [number, number];
  high: readonly [number, number];
}

/** Operations whose work and traffic are known, the longest first. */
export function dotsOf(intensity: ArrayLike<number>, rate: ArrayLike<number>, seconds: ArrayLike<number>): Dot[] {
  const dots: Dot[] = [];
  for (let i = 0; i < seconds.length; i++)
    if (Number.isFinite(intensity[i]) && intensity[i] > 0 && rate[i] > 0)
      dots.push({ index: i, intensity: intensity[i], rate: rate[i], seconds: seconds[i] });
  return dots.sort((a, b) => b.seconds - a.seconds);
}

/** Whole powers of ten around all dots and the ridge of the roof. */
export function axesFor(dots: readonly Dot[], chip: ChipRoofs | null, frame: Frame): Axes {
  const peak = chip ? Math.max(...Object.values(chip.peaks)) : Number.NaN;
  const xs = [...dots.map(({ intensity }) => intensity), chip ? peak / chip.bandwidth : Number.NaN];
  const ys = [...dots.map(({ rate }) => rate), peak];
  const around = (values: number[]): [number, number] => {
    const known = values.filter((value) => Number.isFinite(value) && value > 0);
    if (!known.length) return [1, 10];
    const low = 10 ** Math.floor(Math.log10(Math.min(...known)));
    return [low, Math.max(10 * low, 10 ** Math.ceil(Math.log10(1.05 * Math.max(...known))))];
  };
  const [x0, x1] = around(xs);
  const [y0, y1] = around(ys);
  const share = (value: number, low: number, high: number) => Math.log(value / low) / Math.log(high / low);
  const room = [frame.width - frame.left - 10, frame.height - frame.bottom - 12];
  return {
    x: (value) => frame.left + room[0] * share(value, x0, x1),
    y: (value) => 12 + room[1] * (1 - share(value, y0, y1)),
    low: [x0, y0],
    high: [x1, y1],
  };
}

/** The roof of one dtype from the left edge to the right: along the memory's slope, then level. */
export function roofPoints(bandwidth: number, peak: number, axes: Axes): [number, number][] {
  const [x0, y0] = axes.low;
  const [x1] = axes.high;
  const start = Math.max(x0, y0 / bandwidth);
  const ridge = Math.min(Math.max(peak / bandwidth, start), x1);
  const at = (x: number): [number, number] => [axes.x(x), axes.y(Math.min(peak, x * bandwidth))];
  return [at(start), at(ridge), at(x1)];
}

/** Share of the roof that a dot reaches: 1 is as fast as the chip allows. */
export const shareOfRoof = ({ intensity, rate }: Dot, { bandwidth }: ChipRoofs, peak: number): number =>
  rate / Math.min(peak, intensity * bandwidth);

export function powersOfTen(low: number, high: number, most = 8): number[] {
  const first = Math.round(Math.log10(low));
  const last = Math.round(Math.log10(high));
  const step = Math.max(1, Math.ceil((last - first) / most));
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => 10 ** (first + i * step));
}
