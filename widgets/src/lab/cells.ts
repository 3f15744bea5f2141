// Finds the cell that a line of code came from, also after cells were moved, edited or run again.
import type { CellSource } from "../lib/notebook";

export interface KnownCell {
  source: string;
  /** Its number when it ran last; null where it has not run. */
  number: number | null;
}

const numberOf = (file: string): number | null => {
  const found = /^In \[(\d+)\]$/.exec(file) ?? /^<ipython-input-(\d+)-/.exec(file);
  return found && Number(found[1]);
};

/** Lines that two texts share, as a share of the longer one. */
export function likeness(one: string, other: string): number {
  const mine = one.split("\n");
  const theirs = new Set(other.split("\n"));
  const same = mine.filter((line) => line.trim() && theirs.has(line)).length;
  return same / Math.max(1, mine.length, theirs.size);
}

const LIKE = 0.5;

/** Index of the cell: the one with that text, else with that number, else the one that is most like it; -1: none. */
export function findCell(cells: readonly KnownCell[], file: string, wanted?: CellSource): number {
  const number = wanted?.number ?? numberOf(file);
  const text = wanted?.source.trimEnd();
  if (text) {
    const same = cells.flatMap((cell, i) => (cell.source.trimEnd() === text ? [i] : []));
    const exact = same.find((i) => cells[i].number === number) ?? same[0];
    if (exact !== undefined) return exact;
    const scores = cells.map((cell) => likeness(text, cell.source));
    const best = scores.indexOf(Math.max(...scores));
    if (best >= 0 && scores[best] >= LIKE) return best;
    return -1;
  }
  return number === null ? -1 : cells.findIndex((cell) => cell.number === number);
}

/** Where a line of the cell that ran is in the cell as it is now; the same number where it cannot be told. */
export function findLine(now: string, line: number, wanted?: CellSource): number {
  const text = wanted?.source.split("\n")[line - 1];
  const lines = now.split("\n");
  if (text === undefined || lines[line - 1] === text) return Math.min(line, lines.length);
  const same = lines.flatMap((each, i) => (each === text ? [i + 1] : []));
  const nearest = same.sort((a, b) => Math.abs(a - line) - Math.abs(b - line))[0];
  return nearest ?? Math.min(line, lines.length);
}

/** A path below the server's root, as its contents manager names it; null elsewhere. */
export function relativePath(file: string, root: string): string | null {
  const clean = root.replace(/\/+$/, "");
  if (!clean || !file.startsWith(`${clean}/`)) return file.startsWith("/") || /^[A-Z]:/i.test(file) ? null : file;
  return file.slice(clean.length + 1);
}
