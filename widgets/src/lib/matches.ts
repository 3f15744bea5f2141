// What a search found, marked in the text that it was found in.
import { type Child, h } from "./dom";

export type Piece = readonly [text: string, matched: boolean];

/** The words that a reader typed; every one has to occur, in any case and order. */
export const wordsOf = (text: string): string[] => text.toLowerCase().split(/\s+/).filter(Boolean);

/** One expression that finds any of the words, longer ones first; null for no words. */
export function expressionOf(words: readonly string[]): RegExp | null {
  const quoted = [...words]
    .sort((a, b) => b.length - a.length)
    .map((word) => word.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
  return quoted.length ? new RegExp(quoted.join("|"), "gi") : null;
}

/** The text in pieces, those that match any of the words apart from the rest. */
export function piecesOf(text: string, words: readonly string[]): Piece[] {
  const expression = expressionOf(words);
  if (!expression) return [[text, false]];
  const pieces: Piece[] = [];
  let end = 0;
  for (const { 0: found, index } of text.matchAll(expression)) {
    if (index > end) pieces.push([text.slice(end, index), false]);
    pieces.push([found, true]);
    end = index + found.length;
  }
  if (end < text.length || !pieces.length) pieces.push([text.slice(end), false]);
  return pieces;
}

/**
 * The text in two, the second of which a reader needs most: the number of a line, the last part of a dotted name. A line
 * of a cell stays whole, because every cell has a line 4.
 */
export function splitAtEnd(text: string): readonly [head: string, tail: string] | null {
  if (/^In \[\d*\]:/.test(text)) return null;
  const found = /^(.+\S)(:\d+(?: \(\w+\))?)$/.exec(text) ?? /^([\w<>.]+)(\.[\w<>]+)$/.exec(text);
  return found ? [found[1], found[2]] : null;
}

/** A text that is cut where there is no room for it: of `train_step.py:27` in the file, of `Net.__call__` in `Net`. */
export function shortened(text: string, words: readonly string[]): Child {
  const parts = splitAtEnd(text);
  if (!parts) return marked(text, words);
  return h("span", { class: "wb-place" }, ...parts.map((part) => h("span", {}, marked(part, words))));
}

export function marked(text: string, words: readonly string[]): Child {
  if (!words.length) return text;
  return piecesOf(text, words).map(([piece, matched]) => (matched ? h("mark", { class: "wb-match" }, piece) : piece));
}
