// Operations of a recorded profile: measured beside predicted seconds, and as dots under the roofline of the chip.

import { type Block, showDetails } from "../lib/details";
import { h, replace } from "../lib/dom";
import { formatBandwidth, formatCount, formatFlops, formatSeconds } from "../lib/format";
import { wordsOf } from "../lib/matches";
import { type Dot, dotsOf, type Frame, shareOfRoof } from "../lib/roofline";
import { rooflinePicture } from "../lib/roofline-picture";
import { split } from "../lib/split";
import type { ChipRoofs } from "../lib/states";
import { type TreeTable, treeTable } from "../lib/tree-table";
import type { RenderView, ViewContext } from "../lib/view";

const MOST_DOTS = 400;
const FRAME: Frame = { width: 520, height: 320, left: 74, bottom: 40 };

/** Texts of all operations. */
type Texts = "programs" | "categories" | "places" | "op_names" | "bounds" | "dtypes" | "hlo";

class Measured {
  private readonly names: readonly string[];
  private readonly seconds: Float32Array;
  private readonly predicted: Float32Array;
  private readonly each: Float32Array;
  private readonly chip: ChipRoofs | null;
  private readonly number: Map<string, number>;
  private readonly table: TreeTable;
  private readonly picture = h("div", {});
  private readonly facts = h("div", { class: "wb-belowpicture" });
  private words: string[] = [];
  private program = "";
  private chosen = -1; // tells instructions of one name in several programs apart

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"measured">,
  ) {
    this.names = context.state("names");
    this.seconds = context.array("seconds");
    this.predicted = context.array("predicted");
    this.each = context.array("each");
    this.chip = context.state("chip");
    this.number = new Map(this.names.map((name, i): [string, number] => [name, i]).reverse()); // the longest of a name
    const { node, main, detail } = split(context, "Roofline and the selected operation", 0.56);
    this.table = this.makeTable();
    main.append(this.tools(), this.table.node);
    replace(detail, this.picture, this.facts);
    host.append(node);
    this.drawRoofline();
    context.onSelection(() => this.follow());
    this.follow();
  }

  private tools(): HTMLElement {
    const status = h("span", { class: "wb-note", role: "status" });
    const programs = [...new Set(this.context.state("programs"))];
    const filter = () => {
      const all = !this.words.length && !this.program;
      const count = this.table.filter(all ? null : (i) => this.matches(i));
      status.textContent = `${formatCount(count)} of ${formatCount(this.names.length)} operations`;
      this.drawRoofline();
      this.follow();
    };
    const chooser = h(
      "select",
      {
        "aria-label": "Program",
        onchange: () => {
          this.program = chooser.value;
          filter();
        },
      },
      h("option", { value: "" }, `all ${formatCount(programs.length)} programs`),
      programs.map((name) => h("option", { value: name }, `${name}: ${formatSeconds(this.secondsOf(name))}`)),
    );
    const search = h("input", {
      type: "search",
      class: "wb-search",
      placeholder: "operation, category, line",
      "aria-label": "Search operations",
      oninput: () => {
        this.words = wordsOf(search.value);
        this.table.highlight(this.words);
        filter();
      },
    });
    const left = this.context.state("left_out");
    if (left) status.textContent = `The ${formatCount(left)} shortest operations are not listed`;
    return h("div", { class: "wb-tools" }, programs.length > 1 ? chooser : null, search, status);
  }

  private secondsOf(program: string): number {
    const of = this.context.state("programs");
    return this.seconds.reduce((sum, seconds, i) => sum + (of[i] === program ? seconds : 0), 0);
  }

  private matches(i: number): boolean {
    const of = (name: Texts) => this.context.state(name)[i];
    if (this.program && of("programs") !== this.program) return false;
    const text = `${this.names[i]} ${of("categories")} ${of("places")} ${of("op_names")}`.toLowerCase();
    return this.words.every((word) => text.includes(word));
  }

  private makeTable(): TreeTable {
    const { context } = this;
    const column = (key: string, title: string, unit: string, tip: string, width = "96px") => {
      const values = context.array(key);
      return { key, title, unit, tip, width, value: (i: number) => (Number.isNaN(values[i]) ? null : values[i]) };
    };
    const times = (i: number) => (this.predicted[i] > 0 ? this.each[i] / this.predicted[i] : null);
    return treeTable({
      label: "Measured operations",
      parent: this.names.map(() => -1),
      title: "operation",
      name: (i) => this.names[i],
      columns: [
        {
          ...column("seconds", "seconds", "seconds", "Measured time of all executions on all devices."),
          full: Math.max(...this.seconds, 0),
        },
        column("each", "per execution", "seconds", "Mean measured time of one execution on one device.", "106px"),
        column(
          "predicted",
          "predicted",
          "seconds",
          "Predicted time of one execution, from the published peaks of the chip.",
        ),
        {
          key: "ratio",
          title: "measured ÷ predicted",
          tip: "1 is as fast as the published peaks allow.",
          value: times,
          cell: (i) => {
            const ratio = times(i);
            return ratio === null ? "–" : `${ratio < 10 ? ratio.toFixed(2) : ratio.toFixed(0)} ×`;
          },
          width: "150px",
        },
        { key: "category", title: "category", text: (i) => context.state("categories")[i], width: "130px" },
        { key: "place", title: "source", text: (i) => context.state("places")[i], width: "150px" },
      ],
      sort: { key: "seconds", descending: true },
      choose: (i) => this.choose(i),
      signal: context.signal,
    });
  }

  private choose(i: number): void {
    this.chosen = i;
    const line = this.context.state("lines")[i];
    this.context.select({ instruction: this.names[i], line, node: null });
  }

  private drawRoofline(): void {
    const { context, chip } = this;
    const of = context.state("programs");
    const known = dotsOf(context.array("intensity"), context.array("rate"), this.seconds);
    const dots = known.filter(({ index }) => !this.program || of[index] === this.program).slice(0, MOST_DOTS);
    if (!dots.length) {
      const text =
        "The profile has no operation whose matrix FLOPs and bytes are both known, so there are no dots to draw.";
      return replace(this.picture, h("p", { class: "wb-note" }, text));
    }
    const svg = rooflinePicture({
      dots,
      chip,
      frame: FRAME,
      what: "measured operations",
      spoken: (dot) => this.spoken(dot),
      choose: ({ index }) => this.choose(index),
    });
    const roof = chip
      ? `${chip.name}: ${formatBandwidth(chip.bandwidth)} and the peaks of its dtypes. `
      : "The chip is not known. ";
    const caption = `${roof}${formatCount(dots.length)} operations; the area of a dot is its measured time.`;
    replace(this.picture, svg, h("p", { class: "wb-note" }, caption, " ", context.state("error_bar")));
  }

  private spoken(dot: Dot): string {
    const { chip } = this;
    const peak = chip ? this.peakOf(dot.index, chip) : 0;
    const share = chip && peak ? `, ${(100 * shareOfRoof(dot, chip, peak)).toFixed(0)} % of the roof` : "";
    return (
      `${this.names[dot.index]}: ${dot.intensity.toPrecision(3)} matrix FLOPs per byte, ${formatFlops(dot.rate)}/s measured` +
      `${share}, ${formatSeconds(dot.seconds)} in all`
    );
  }

  /** The peak of the operation's own dtype; the highest where the chip lists none for it. */
  private peakOf(i: number, chip: ChipRoofs): number {
    return chip.peaks[this.context.state("dtypes")[i]] ?? Math.max(...Object.values(chip.peaks));
  }

  private follow(): void {
    const name = this.context.selection.instruction ?? "";
    const i = this.names[this.chosen] === name ? this.chosen : (this.number.get(name) ?? -1);
    this.table.select(i < 0 ? null : i);
    for (const dot of this.picture.querySelectorAll<SVGElement>("[data-dot]"))
      dot.classList.toggle("wb-selected", dot.dataset.dot === String(i));
    const programs = this.context.state("programs");
    this.describe(i < 0 ? Math.max(0, programs.indexOf(this.program)) : i);
  }

  private describe(i: number): void {
    const { context } = this;
    const of = (name: Texts) => context.state(name)[i] ?? "";
    const known = (name: string, write: (value: number) => string) => {
      const value = context.array(name)[i];
      return Number.isFinite(value) ? write(value) : "";
    };
    const rows: [string, string][] = [
      ["measured", known("seconds", formatSeconds)],
      ["executions", known("executions", formatCount)],
      ["per execution", known("each", formatSeconds)],
      ["predicted", known("predicted", formatSeconds)],
      ["bound by", of("bounds")],
      [
        "reached",
        [known("rate", (v) => `${formatFlops(v)}/s`), known("bandwidth", formatBandwidth)].filter(Boolean).join(", "),
      ],
      ["category", of("categories")],
      ["dtype", of("dtypes")],
      ["source", of("places")],
      ["program", of("programs")],
      ["op_name", of("op_names")],
    ];
    const blocks: Block[] = [{ form: "facts", title: "", rows: rows.filter(([, text]) => text) }];
    const text = of("hlo");
    const extra = text ? [h("h3", {}, "HLO"), h("pre", { class: "wb-hlotext" }, text)] : [];
    const title = this.names[i];
    showDetails(context, this.facts, { title, kind: "clients", subtitle: "measured operation", blocks, extra });
  }
}

export const measured: RenderView<"measured"> = (host, context) => {
  new Measured(host, context);
};
