// Widths of a table's columns in the place that there is.

const LEAST_NAME = 190;
export const DEEP_NAME = 300; // beside all columns: names deep in a tree begin far to the right
const READABLE_NAME = 260; // what columns are hidden for
const LETTER = 7; // pixels of a letter of a header, at most
const PADDING = 14;
const ARROW = 2; // letters: of the column that is sorted by
const LONGEST = { flops: 11, bytes: 9, seconds: 8 } as const; // letters: "-1.14 GFLOP"

export interface WantedColumn {
  /** A CSS width with one length in pixels: "104px", "minmax(140px, 1fr)". */
  width: string;
  /** What it can be narrowed to, in pixels. */
  least: number;
  /** Hidden before the others where there is no room; else the last goes first. */
  lesser?: boolean;
  /** Never hidden: the column that the rows are sorted by. */
  needed?: boolean;
}

const pixels = (width: string): number => Number.parseFloat(/[\d.]+(?=px)/.exec(width)?.[0] ?? "100");

/** The width of a column of numbers of a unit, below a header that wraps between its words: no number is cut. */
export function leastOfNumbers(title: string, unit: string | undefined): number {
  const longest = LONGEST[unit as keyof typeof LONGEST] ?? 8;
  return PADDING + LETTER * Math.max(longest, ...title.split(" ").map((word) => word.length + ARROW));
}

/**
 * The columns that stay where not all have room, by their places; one at least. The last goes first; lesser ones go
 * before the others, and as soon as names have less than they want.
 */
export function keptColumns(name: number, wanted: readonly WantedColumn[], available: number): number[] {
  const least = ({ width, least }: WantedColumn) => Math.min(pixels(width), least);
  let need = wanted.reduce((sum, each) => sum + least(each), 0);
  const kept = new Set(wanted.keys());
  const hide = (goes: (column: WantedColumn) => boolean, names: number) => {
    for (let i = wanted.length - 1; i >= 0 && need + names > available && kept.size > 1; i--)
      if (kept.has(i) && !wanted[i].needed && goes(wanted[i])) {
        kept.delete(i);
        need -= least(wanted[i]);
      }
  };
  if (available > 0) {
    hide(({ lesser }) => lesser ?? false, name);
    hide(() => true, Math.min(name, READABLE_NAME));
  }
  return [...kept];
}

/** The grid's columns, the name first; all are narrowed by the same share of what they can spare. */
export function fitColumns(
  name: number,
  wanted: readonly WantedColumn[],
  available: number,
  leastName = Math.min(name, LEAST_NAME),
): { columns: string; least: number } {
  const all = [
    { width: Math.max(name, leastName), least: leastName },
    ...wanted.map(({ width, least }) => ({ width: pixels(width), least: Math.min(pixels(width), least) })),
  ];
  const full = all.reduce((sum, { width }) => sum + width, 0);
  const tight = all.reduce((sum, { least }) => sum + least, 0);
  const room = available > 0 ? available : full; // not laid out yet
  const spare = full > tight ? Math.min(1, Math.max(0, (room - tight) / (full - tight))) : 1;
  const fitted = all.map(({ width, least }) => Math.floor(least + spare * (width - least)));
  const [first, ...rest] = fitted;
  const columns = rest.map((size, i) => wanted[i].width.replace(/[\d.]+px/, `${size}px`));
  return {
    columns: [`minmax(${first}px, 1fr)`, ...columns].join(" "),
    least: fitted.reduce((sum, each) => sum + each, 0),
  };
}
