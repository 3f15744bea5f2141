// Source, StableHLO and compiled HLO beside one another, linked by line, with what every line costs in its gutter.
import type { EditorChunk, EditorHandle, GutterColumn } from "../editor/types";
import { type Child, h, menu, replace } from "../lib/dom";
import { formatBytes, formatFlops, plural } from "../lib/format";
import { consume } from "../lib/keyboard";
import { wordsOf } from "../lib/matches";
import type { ViewContext } from "../lib/view";
import { definedName, type LineCost, type Module, type SourceFile } from "./hlo-data";

type Mark = readonly [number, string];
const CHOSEN = "wb-cm-chosen";
const LINKED = "wb-cm-linked";

type Figure = readonly [keyof LineCost, string, string, (value: number) => string];
const FIGURES: readonly Figure[] = [
  ["flops", "matrix FLOPs", "matrix FLOPs of one device in one call", formatFlops],
  ["elementwise", "elementwise FLOPs", "elementwise FLOPs of one device in one call", formatFlops],
  ["sent", "sent", "bytes that one device sends in one call", formatBytes],
  ["traffic", "memory traffic", "memory traffic of one device in one call", formatBytes],
];

interface Listing {
  node: HTMLElement;
  editor?: EditorHandle;
}

function pane(title: string, tools: Child = null, head: Child = title): Listing & { place: HTMLElement } {
  const place = h("div", { class: "wb-editor" });
  const node = h(
    "section",
    { "aria-label": title },
    h("div", { class: "wb-editorhead" }, h("span", {}, head), tools),
    place,
  );
  return { node, place };
}

export class Listings {
  readonly node = h("div", { class: "wb-editors" });
  private readonly files: readonly SourceFile[];
  private readonly stableSource: Float32Array;
  private readonly stable: string;
  private readonly compiled: string;
  private readonly costs: Map<string, LineCost>;
  private file = 0;
  private figure: keyof LineCost | undefined; // of the column next to the code
  private language: "stable" | "compiled";
  private mine: Listing = { node: h("div") };
  private theirs: Listing = { node: h("div") };
  private chunk: EditorChunk | undefined;
  private words: readonly string[] = [];
  private readonly count = h("span", { class: "wb-note", role: "status" });
  private readonly find = h("input", {
    type: "search",
    class: "wb-search",
    placeholder: "find; Enter: next",
    "aria-label": "Find in the source and the listing",
    oninput: () => this.search(this.find.value),
    onkeydown: (event: KeyboardEvent) => this.onFindKey(event),
  });

  constructor(
    private readonly context: ViewContext<"hlo">,
    private readonly module: Module,
  ) {
    this.files = context.state("code");
    this.stableSource = context.array("hlo.stable");
    this.stable = context.state("stable");
    this.compiled = context.state("compiled");
    this.costs = module.costOfLines();
    this.language = this.compiled ? "compiled" : "stable";
    context.signal.addEventListener("abort", () => {
      this.mine.editor?.destroy();
      this.theirs.editor?.destroy();
    });
  }

  /** Loads the editor when the listings are first looked at. */
  async open(): Promise<void> {
    if (this.chunk) return this.follow();
    replace(this.node, h("p", { class: "wb-note wb-empty", role: "status" }, "Loading the editor …"));
    this.chunk = await this.context.chunk<EditorChunk>("editor");
    if (this.context.signal.aborted) return;
    const { line } = this.context.selection;
    const chosen = this.files.findIndex(([file]) => line?.startsWith(`${file}:`));
    this.file = chosen < 0 ? this.dearest() : chosen;
    this.draw();
  }

  /** The file whose lines cost the most: a cell that only calls the program costs almost nothing. */
  private dearest(): number {
    const sums = this.files.map(([file]) => {
      const own = [...this.costs].filter(([key]) => key.startsWith(`${file}:`));
      return own.reduce((sum, [, { flops, elementwise, traffic }]) => sum + flops + elementwise + traffic, 0);
    });
    return Math.max(0, sums.indexOf(Math.max(...sums)));
  }

  /** Marks what is searched for, on both sides. */
  search(text: string): void {
    if (this.find.value !== text) this.find.value = text;
    this.words = wordsOf(text);
    this.mark();
  }

  private mark(): void {
    const mine = this.mine.editor?.highlight(this.words) ?? 0;
    const theirs = this.theirs.editor?.highlight(this.words) ?? 0;
    this.count.textContent = this.words.length ? `${plural(theirs, "line")}, ${mine} in your source` : "";
  }

  private onFindKey(event: KeyboardEvent): void {
    if (event.key !== "Enter") return;
    for (const { editor } of [this.mine, this.theirs]) editor?.next(event.shiftKey ? -1 : 1);
    consume(event);
  }

  private draw(): void {
    this.drawMine();
    this.drawTheirs();
    replace(this.node, this.mine.node, this.theirs.node);
    this.mark();
    this.follow();
  }

  /** The figures that some line has; the column next to the code shows one of them. */
  private measured(): Figure[] {
    const costs = [...this.costs.values()];
    return FIGURES.filter(([key]) => costs.some((cost) => cost[key] > 0));
  }

  private gutters(file: string): GutterColumn[] {
    const known = this.measured();
    const figure = known.find(([key]) => key === this.figure) ?? known[0];
    if (!figure) return [];
    const [key, , tip, format] = figure;
    const most = Math.max(...[...this.costs.values()].map((cost) => cost[key]));
    const cell = (line: number) => {
      const value = this.costs.get(`${file}:${line}`)?.[key] ?? 0;
      return value > 0 ? { text: format(value), share: value / most } : null;
    };
    return [{ tip, widest: "999 MFLOP", cell }];
  }

  private drawMine(): void {
    this.mine.editor?.destroy();
    const shown = this.files[this.file];
    const choose =
      this.files.length > 1
        ? menu(
            "File",
            this.files.map(([, title], i) => [i, title] as const),
            this.file,
            (i) => {
              this.file = i;
              this.draw();
            },
          )
        : null;
    const known = this.measured();
    const column = known.length
      ? menu(
          "Column",
          known.map(([key, title]) => [key, title] as const),
          this.figure ?? known[0][0],
          (key) => {
            this.figure = key;
            this.draw();
          },
        )
      : null;
    const title = shown && this.files.length === 1 ? `Your source: ${shown[1]}` : "Your source";
    const made = pane(title, [column, choose]);
    this.mine = made;
    if (!shown || !this.chunk)
      return made.place.append(h("p", { class: "wb-note wb-empty" }, "The source file cannot be read."));
    const [file, name, lines] = shown;
    made.editor = this.chunk.createEditor({
      parent: made.place,
      label: `Your source, ${name}`,
      text: lines.map(([, text]) => text).join("\n"),
      numbers: lines.map(([number]) => number),
      language: "python",
      gutters: this.gutters(file),
      onLine: (line) => this.context.select({ line: `${file}:${line}`, instruction: null }),
    });
  }

  private drawTheirs(): void {
    this.theirs.editor?.destroy();
    const both = this.stable && this.compiled;
    const choose = both
      ? menu(
          "Listing",
          [
            ["compiled", "compiled HLO"],
            ["stable", "StableHLO"],
          ],
          this.language,
          (value) => {
            this.language = value;
            this.draw();
          },
        )
      : null;
    const stable = this.language === "stable";
    const made = pane(stable ? "StableHLO" : "Compiled HLO", [this.find, this.count], choose ?? undefined);
    this.theirs = made;
    const text = stable ? this.stable : this.compiled;
    if (!text || !this.chunk)
      return made.place.append(h("p", { class: "wb-note wb-empty" }, "This record contains no listing."));
    made.editor = this.chunk.createEditor({
      parent: made.place,
      label: stable ? "StableHLO listing" : "Compiled HLO listing",
      text,
      language: "hlo",
      onLine: (line) => (stable ? this.chooseStable(line) : this.chooseCompiled(text, line)),
    });
  }

  private chooseStable(line: number): void {
    const key = this.module.keyAt(this.stableSource[line - 1] ?? -1);
    if (key) this.context.select({ line: key, instruction: null });
  }

  private chooseCompiled(text: string, line: number): void {
    const i = this.module.find(definedName(text.split("\n")[line - 1] ?? "") ?? undefined);
    if (i >= 0) this.context.select({ instruction: this.module.names[i], line: this.module.lineOf(i) || null });
  }

  /** Marks the chosen line on both sides. */
  follow(): void {
    const { line, instruction } = this.context.selection;
    const [file] = this.files[this.file] ?? [];
    const here = line?.startsWith(`${file}:`) ? Number(line.split(":").pop()) : 0;
    this.mine.editor?.mark(here ? [[here, CHOSEN]] : [], here || this.firstCost(file));
    const marks = this.language === "stable" ? this.stableMarks(line) : this.compiledMarks(line, instruction);
    const goal = this.language === "compiled" && line ? this.module.largestOf(line) : 0;
    this.theirs.editor?.mark(marks, marks.find(([, look]) => look === CHOSEN)?.[0] ?? (goal || marks[0]?.[0]));
  }

  /** The first line that costs something, or is of the program at all: where to look before anything is chosen. */
  private firstCost(file: string | undefined): number | undefined {
    const known = this.costs.size ? this.costs.keys() : Array.from(this.stableSource, (at) => this.module.keyAt(at));
    const lines = [...known].filter((key) => file && key?.startsWith(`${file}:`));
    return lines.length ? Math.min(...lines.map((key) => Number(key.split(":").pop()))) : undefined;
  }

  private stableMarks(line: string | undefined): Mark[] {
    if (!line) return [];
    return Array.from(this.stableSource, (source, i): [number, number] => [source, i + 1])
      .filter(([source]) => this.module.keyAt(source) === line)
      .map(([, number]) => [number, LINKED]);
  }

  private compiledMarks(line: string | undefined, instruction: string | undefined): Mark[] {
    const linked = line
      ? this.module.ofLine(line).map((i): Mark => [this.module.lineDefining(this.module.names[i]), LINKED])
      : [];
    const at = instruction ? this.module.lineDefining(instruction) : 0;
    const others = linked.filter(([number]) => number > 0 && number !== at);
    return at ? [...others, [at, CHOSEN]] : others;
  }
}
