// The code editor: a chunk of its own, loaded when the first listing is opened. Read only; it searches, folds and marks.
import { python } from "@codemirror/lang-python";
import {
  bracketMatching,
  codeFolding,
  foldGutter,
  foldKeymap,
  foldService,
  HighlightStyle,
  StreamLanguage,
  syntaxHighlighting,
} from "@codemirror/language";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState, type Extension, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  drawSelection,
  EditorView,
  GutterMarker,
  gutter,
  keymap,
  lineNumbers,
  ViewPlugin,
  type ViewUpdate,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { expressionOf } from "../lib/matches";
import type { CreateEditor, EditorHandle, EditorOptions, GutterColumn } from "./types";

const setMarks = StateEffect.define<readonly (readonly [number, string])[]>();
const marks = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(present, { effects, state }) {
    for (const effect of effects) {
      if (!effect.is(setMarks)) continue;
      const made = new RangeSetBuilder<Decoration>();
      for (const [line, look] of [...effect.value].sort((a, b) => a[0] - b[0]))
        if (line >= 1 && line <= state.doc.lines) {
          const { from } = state.doc.line(line);
          made.add(from, from, Decoration.line({ class: look }));
        }
      return made.finish();
    }
    return present;
  },
  provide: (field) => EditorView.decorations.from(field),
});

const setMatches = StateEffect.define<RegExp | null>();
const match = Decoration.mark({ class: "wb-match" });
/** Matches of a search, decorated where they are in sight only: a listing may have a hundred thousand lines. */
const matches = StateField.define<RegExp | null>({
  create: () => null,
  update: (present, { effects }) =>
    effects.reduce((value, each) => (each.is(setMatches) ? each.value : value), present),
});
const shownMatches = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;
    constructor(view: EditorView) {
      this.decorations = this.find(view);
    }
    update(update: ViewUpdate) {
      if (update.viewportChanged || update.startState.field(matches) !== update.state.field(matches))
        this.decorations = this.find(update.view);
    }
    private find(view: EditorView): DecorationSet {
      const expression = view.state.field(matches);
      const made = new RangeSetBuilder<Decoration>();
      if (expression)
        for (const { from, to } of view.visibleRanges)
          for (const found of view.state.sliceDoc(from, to).matchAll(expression))
            made.add(from + found.index, from + found.index + found[0].length, match);
      return made.finish();
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

class Cell extends GutterMarker {
  constructor(
    private readonly text: string,
    private readonly share: number,
    private readonly tip: string,
  ) {
    super();
  }
  override eq(other: Cell): boolean {
    return other.text === this.text && other.share === this.share;
  }
  override toDOM(): Node {
    const node = document.createElement("span");
    node.className = "wb-cm-cost";
    node.textContent = this.text;
    node.title = this.tip;
    node.style.setProperty("--share", `${Math.round(100 * this.share)}%`);
    return node;
  }
}

function costGutter(column: GutterColumn, numberOf: (line: number) => number): Extension {
  return gutter({
    class: "wb-cm-gutter",
    lineMarker(view, block) {
      const cell = column.cell(numberOf(view.state.doc.lineAt(block.from).number));
      return cell ? new Cell(cell.text, cell.share, `${cell.text}: ${column.tip}`) : null;
    },
    initialSpacer: () => new Cell(column.widest, 0, ""),
  });
}

/** Folds from a line that opens a brace to the one that closes it. */
const braces = foldService.of((state, start) => {
  const line = state.doc.lineAt(start);
  if (!/\{\s*$/.test(line.text)) return null;
  let depth = 0;
  for (let number = line.number; number <= state.doc.lines; number++) {
    const { text, from } = state.doc.line(number);
    for (const character of text) depth += character === "{" ? 1 : character === "}" ? -1 : 0;
    if (depth <= 0) return number > line.number + 1 ? { from: line.to, to: from - 1 } : null;
  }
  return null;
});

const compiled = StreamLanguage.define({
  name: "hlo",
  token(stream) {
    if (stream.match(/^\/\/.*/)) return "comment";
    if (stream.match(/^"(?:[^"\\]|\\.)*"/)) return "string";
    if (stream.match(/^[%@#][\w.$-]+/)) return "variableName";
    if (stream.match(/^(?:tensor|memref|vector)\b|^(?:pred|[su]\d+|f\d+\w*|bf16|c64|c128|i\d+|ui\d+)(?=[[\]x>,()\s])/))
      return "typeName";
    if (stream.match(/^(?:ENTRY|ROOT|HloModule|module|func\.func|return|public|private)\b/)) return "keyword";
    if (stream.match(/^(?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)[\w-]*/)) return "invalid";
    if (stream.match(/^(?:stablehlo|sdy|mhlo|func)\.\w+/)) return "propertyName";
    if (stream.match(/^[a-z][\w-]*(?=\()/)) return "propertyName";
    if (stream.match(/^-?\d+(?:\.\d+)?(?:e[+-]?\d+)?/)) return "number";
    stream.next();
    return null;
  },
});

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--wb-loop)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--wb-reduce)" },
  { tag: tags.comment, color: "var(--wb-muted)", fontStyle: "italic" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--wb-clients)" },
  {
    tag: [tags.propertyName, tags.function(tags.variableName), tags.definition(tags.variableName)],
    color: "var(--wb-broadcast)",
  },
  { tag: tags.typeName, color: "var(--wb-branch)" },
  { tag: tags.invalid, color: "var(--wb-collective)", fontWeight: "600" },
]);

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "12px", backgroundColor: "var(--wb-bg)", color: "var(--wb-fg)" },
  "&.cm-focused": { outline: "2px solid var(--wb-accent)", outlineOffset: "-2px" },
  ".cm-scroller": {
    fontFamily:
      "var(--jp-code-font-family, ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace)",
    lineHeight: "1.55",
  },
  ".cm-gutters": {
    backgroundColor: "var(--wb-panel)",
    color: "var(--wb-muted)",
    borderRight: "1px solid var(--wb-line)",
  },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": {
    backgroundColor: "color-mix(in srgb, var(--wb-accent) 26%, transparent) !important",
  },
  ".cm-cursor": { borderLeftColor: "var(--wb-accent)" },
  ".cm-panels": { backgroundColor: "var(--wb-panel)", color: "var(--wb-fg)", borderColor: "var(--wb-line)" },
  ".cm-foldPlaceholder": {
    backgroundColor: "var(--wb-raised)",
    borderColor: "var(--wb-line)",
    color: "var(--wb-muted)",
  },
});

export const createEditor: CreateEditor = (options: EditorOptions): EditorHandle => {
  const { parent, label, text, language, numbers, gutters, onLine } = options;
  const numberOf = (line: number) => numbers?.[line - 1] ?? line;
  const lineOf = (number: number) => (numbers ? numbers.indexOf(number) + 1 : number);
  const choose = (view: EditorView, at: number) => onLine?.(numberOf(view.state.doc.lineAt(at).number));
  const state = EditorState.create({
    doc: text,
    extensions: [
      EditorState.readOnly.of(true),
      lineNumbers({ formatNumber: (line) => String(numberOf(line)) }),
      (gutters ?? []).map((column) => costGutter(column, numberOf)),
      codeFolding(),
      foldGutter(),
      language === "python" ? python() : [compiled, braces],
      syntaxHighlighting(colours),
      bracketMatching(),
      highlightSelectionMatches(),
      search({ top: true }),
      drawSelection(),
      keymap.of([
        { key: "Enter", run: (view) => (choose(view, view.state.selection.main.head), true) },
        ...searchKeymap,
        ...foldKeymap,
      ]),
      marks,
      matches,
      shownMatches,
      look,
      EditorView.contentAttributes.of({ "aria-label": label, "data-lm-suppress-shortcuts": "true", tabindex: "0" }),
      EditorView.domEventHandlers({
        click(event, view) {
          const at = view.posAtCoords({ x: event.clientX, y: event.clientY });
          if (at !== null && view.state.selection.main.empty) choose(view, at);
          return false;
        },
      }),
    ],
  });
  const view = new EditorView({ state, parent });
  let found: number[] = []; // lines with a match
  let at = -1;
  return {
    mark(lines, reveal) {
      view.dispatch({ effects: setMarks.of(lines.map(([number, name]) => [lineOf(number), name] as const)) });
      const line = reveal === undefined ? 0 : lineOf(reveal);
      if (line >= 1 && line <= view.state.doc.lines)
        view.dispatch({ effects: EditorView.scrollIntoView(view.state.doc.line(line).from, { y: "center" }) });
    },
    highlight(words) {
      const expression = expressionOf(words);
      view.dispatch({ effects: setMatches.of(expression) });
      const single = expression ? new RegExp(expression.source, "i") : null;
      found = single ? text.split("\n").flatMap((line, i) => (single.test(line) ? [i + 1] : [])) : [];
      at = -1;
      return found.length;
    },
    next(step) {
      if (!found.length) return;
      at = at < 0 && step < 0 ? found.length - 1 : (at + step + found.length) % found.length;
      const { from } = view.state.doc.line(found[at]);
      view.dispatch({ selection: { anchor: from }, effects: EditorView.scrollIntoView(from, { y: "center" }) });
    },
    destroy: () => view.destroy(),
  };
};
