// What the editor's chunk offers; kept apart, so that the rest of the front end does not hold the editor itself.

export interface GutterCell {
  text: string;
  /** 0 … 1 of the largest: the length of the bar behind it. */
  share: number;
}
export interface GutterColumn {
  tip: string;
  /** The longest text, which makes the gutter as wide as it will need to be. */
  widest: string;
  cell: (line: number) => GutterCell | null;
}
export interface EditorOptions {
  parent: HTMLElement;
  label: string;
  text: string;
  language: "python" | "hlo";
  /** The number of every line, where the text is not from 1 on. */
  numbers?: readonly number[];
  gutters?: readonly GutterColumn[];
  /** A line was chosen, by a click or by Enter. */
  onLine?: (line: number) => void;
}
export interface EditorHandle {
  /** Marks lines with a class, and scrolls one of them into sight. */
  mark(lines: readonly (readonly [number, string])[], reveal?: number): void;
  /** Marks every occurrence of the words; returns how many lines hold one. */
  highlight(words: readonly string[]): number;
  /** Scrolls to the next line with a match after the one that it went to last, or to the one before. */
  next(step: 1 | -1): void;
  destroy(): void;
}
export type CreateEditor = (options: EditorOptions) => EditorHandle;
export interface EditorChunk {
  createEditor: CreateEditor;
}
