import { quantile } from "../lib/scale";

/** At every place, the wished quantiles over all rows; null where no row has a number. */
export function quantiles(rows: readonly Float32Array[], shares: readonly number[]): (number | null)[][] {
  const length = rows[0]?.length ?? 0;
  const columns = Array.from({ length }, (_, i) => Float32Array.from(rows, (row) => row[i]));
  return shares.map((share) =>
    columns.map((column) => {
      const value = quantile(column, share);
      return Number.isFinite(value) ? value : null;
    }),
  );
}
