// Ranges, ticks and histograms of plain numbers.

type Numbers = ArrayLike<number>;

export function range(values: Numbers): [number, number] {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (let i = 0; i < values.length; i++) {
    if (!Number.isFinite(values[i])) continue;
    low = Math.min(low, values[i]);
    high = Math.max(high, values[i]);
  }
  return low <= high ? [low, high] : [0, 0];
}

export function mean(values: Numbers): number {
  let sum = 0;
  let count = 0;
  for (let i = 0; i < values.length; i++)
    if (Number.isFinite(values[i])) {
      sum += values[i];
      count += 1;
    }
  return count ? sum / count : Number.NaN;
}

/** The value below which `share` of the finite values lie. */
export function quantile(values: Numbers, share: number): number {
  const sorted = Array.from(values)
    .filter(Number.isFinite)
    .sort((a, b) => a - b);
  if (!sorted.length) return Number.NaN;
  const place = (sorted.length - 1) * share;
  const low = Math.floor(place);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (place - low);
}

/** About `count` round numbers from 0 or `low` to `high`. */
export function ticks(low: number, high: number, count = 4): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999) ?? 10 * power;
  const made: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i++)
    made.push(Number((i * step).toPrecision(12)));
  return made;
}

/** Whether a logarithmic scale shows more: all positive, and the largest far above the middle. */
export const suitsLog = (values: Numbers): boolean => {
  const [low, high] = range(values);
  return low > 0 && high / low > 20 && high / quantile(values, 0.5) > 8;
};

/** 0 … 1 along a linear or logarithmic range; equal values are in the middle. */
export function position(value: number, low: number, high: number, log: boolean): number {
  if (!(high > low)) return 0.5;
  return log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

/** Pearson's correlation of two columns, over the rows where both are known. */
export function correlation(a: Numbers, b: Numbers): number {
  const rows = Array.from({ length: a.length }, (_, i) => i).filter(
    (i) => Number.isFinite(a[i]) && Number.isFinite(b[i]),
  );
  const meanA = mean(rows.map((i) => a[i]));
  const meanB = mean(rows.map((i) => b[i]));
  let both = 0;
  let ownA = 0;
  let ownB = 0;
  for (const i of rows) {
    both += (a[i] - meanA) * (b[i] - meanB);
    ownA += (a[i] - meanA) ** 2;
    ownB += (b[i] - meanB) ** 2;
  }
  return ownA > 0 && ownB > 0 ? both / Math.sqrt(ownA * ownB) : Number.NaN;
}
