// The spread of a figure over equal layers.

/** Positions of the least and of the largest number; the first of equal ones. */
export function extremes(values: readonly number[]): [number, number] {
  let [least, most] = [0, 0];
  values.forEach((value, i) => {
    if (value < values[least]) least = i;
    if (value > values[most]) most = i;
  });
  return [least, most];
}

const MOST_BARS = 24;
const LEAST_PERCENT = 8; // of a bar that can still be seen

/** Heights in percent from zero; of many layers neighbours share a bar, which has the larger of them. */
export function sparkHeights(values: readonly number[]): number[] {
  const each = Math.ceil(values.length / MOST_BARS);
  const most = Math.max(...values, 0);
  const heights: number[] = [];
  for (let i = 0; i < values.length; i += each) {
    const value = Math.max(...values.slice(i, i + each), 0);
    heights.push(most > 0 ? Math.max(LEAST_PERCENT, Math.round((100 * value) / most)) : LEAST_PERCENT);
  }
  return heights;
}
