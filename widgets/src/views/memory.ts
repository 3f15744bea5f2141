// Bytes alive over the schedule, the buffers at the peak, and whether it fits.
import { type Block, showDetails, unbroken } from "../lib/details";
import { button, h, pictureFrom, s } from "../lib/dom";
import { formatBytes, formatCount } from "../lib/format";
import { clamp, consume } from "../lib/keyboard";
import { split } from "../lib/split";
import { placeIn } from "../lib/stage";
import type { MemoryRow, MemoryState } from "../lib/states";
import { treeTable } from "../lib/tree-table";
import type { RenderView, ViewContext } from "../lib/view";
import { Inspector } from "./inspector";
import { bufferTreemap } from "./treemap";

const UNSCALED = { "vector-effect": "non-scaling-stroke" };

/** The end of a name scope, which says more than what all of a program's have in common. */
function lastParts(opName: string): string {
  const parts = opName.split("/");
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : opName;
}

/** Index of the largest value. */
export function peakOf(live: ArrayLike<number>): number {
  let peak = 0;
  for (let i = 1; i < live.length; i++) if (live[i] > live[peak]) peak = i;
  return peak;
}

const percent = (share: number): string =>
  share < 0.001 ? "less than 0.1 %" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

/** How much of a device the program needs, as a bar. */
function fitBar(peak: number | null, capacity: number | null, of: string): HTMLElement | null {
  if (peak === null || capacity === null) return null;
  const fits = peak <= capacity;
  const share = clamp(peak / capacity, 0, 1);
  const words = fits
    ? `${formatBytes(peak)} of ${formatBytes(capacity)} on ${of}: fits (${percent(share)})`
    : `${formatBytes(peak)} needed, ${formatBytes(capacity)} on ${of}: does not fit, ${formatBytes(peak - capacity)} too much`;
  const bar = h("span", { class: `wb-fit ${fits ? "" : "wb-fit-bad"}`, "aria-hidden": "true" });
  bar.style.setProperty("--share", `${100 * share}%`);
  return h("div", { class: "wb-row" }, bar, h("b", { class: fits ? "" : "wb-wrong" }, words));
}

class Memory {
  private readonly live: Float32Array;
  private readonly moments: MemoryState["moments"];
  private readonly keys: MemoryState["keys"];
  private readonly places: MemoryState["places"];
  private readonly buffers: readonly MemoryRow[];
  private readonly peak: number;
  private at: number;
  private marked = new Set<number>();
  private plot: SVGSVGElement | null = null; // in units of instructions
  private readonly slider: HTMLElement;
  private readonly marks = s("path", { class: "wb-stroke-collective", "stroke-width": 2, ...UNSCALED });
  private readonly cursor = s("line", { y1: 0, y2: 1, class: "wb-stroke-accent", ...UNSCALED });
  private readonly status = h("p", { class: "wb-note", role: "status" });
  private readonly detail: HTMLElement;
  private readonly inspector: Inspector;
  private readonly table;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"memory">,
  ) {
    this.live = context.array("memory.live");
    this.moments = context.state("moments");
    this.keys = context.state("keys");
    this.places = context.state("places");
    this.buffers = context.state("buffers");
    this.peak = this.at = peakOf(this.live);
    const { node, main, detail } = split(context, "Memory of one device", 0.66);
    this.detail = detail;
    this.inspector = new Inspector(context, detail);
    this.slider = h("div", {
      class: "wb-memory",
      tabindex: 0,
      role: "slider",
      "aria-label": "Memory over the schedule; arrow keys go from instruction to instruction, Enter chooses",
      "aria-valuemin": 1,
      "aria-valuemax": this.live.length,
    });
    const fit = fitBar(context.state("peak"), context.state("capacity"), context.state("capacity_of"));
    const curve = this.live.length > 1;
    main.append(
      h("div", { class: "wb-tools" }, fit, curve ? button("Go to the peak", () => this.go(this.peak)) : null),
    );
    if (curve) main.append(h("div", { class: "wb-memoryplace" }, this.slider, this.status));
    if (curve) this.place(pictureFrom(context.state("drawn")));
    this.table = this.bufferTable();
    if (this.buffers.length) main.append(...this.bufferPanes());
    host.append(node);
    this.listen();
    context.onSelection(() => this.follow());
    this.tell();
    this.follow();
  }

  /** The buffers as a table or as areas, one of them at a time. */
  private bufferPanes(): HTMLElement[] {
    const single = this.buffers.filter(({ count }) => !count);
    // A compiler may list fewer than all: without the rest the areas would seem to be all of the peak.
    const rest = (this.live[this.peak] ?? 0) - single.reduce((sum, { bytes }) => sum + bytes, 0);
    const others = {
      name: "not listed",
      bytes: rest,
      shape: "many shapes",
      group: "smaller buffers",
      place: "",
      key: "",
    };
    const shown = rest > 0 ? [...single, others] : single;
    const areas = bufferTreemap(this.context, shown, (i) => this.choosePlace(shown[i]?.key));
    const faces: [string, string, HTMLElement][] = [
      ["table", "Table", this.table.node],
      ["areas", "Treemap", areas.node],
    ];
    const buttons = faces.map(([face, title]) => button(title, () => this.context.set("buffers", face)));
    const show = () => {
      const wanted = this.context.setting<string>("buffers", "table");
      faces.forEach(([face, , node], i) => {
        node.hidden = face !== wanted;
        buttons[i].setAttribute("aria-pressed", String(face === wanted));
      });
      areas.draw();
    };
    this.context.onSettings(show);
    show();
    const group = h("div", { class: "wb-faces", role: "group", "aria-label": "Buffers as" }, buttons);
    const head = h("div", { class: "wb-editorhead wb-row" }, "Alive at the peak", group);
    return [head, this.table.node, areas.node];
  }

  private choosePlace(key = ""): void {
    if (key) this.context.select({ line: key, instruction: null, node: null });
  }

  private bufferTable() {
    const { buffers } = this;
    const outer = buffers.filter(({ parent }) => parent < 0);
    const total = outer.reduce((sum, { bytes }) => sum + bytes, 0) || 1;
    return treeTable({
      label: "Buffers alive at the peak",
      parent: buffers.map(({ parent }) => parent),
      open: new Set(buffers.flatMap(({ parent }, i) => (parent < 0 ? [i] : []))),
      title: "buffer",
      name: (i) => buffers[i].name,
      columns: [
        {
          key: "bytes",
          title: "bytes",
          unit: "bytes",
          tip: "The bar shows the fraction of the bytes alive at the peak.",
          value: (i) => buffers[i].bytes,
          full: total,
        },
        {
          key: "padding",
          title: "padding",
          unit: "bytes",
          value: (i) => buffers[i].padding,
          width: "86px",
          lesser: true,
        },
        { key: "shape", title: "shape", text: (i) => buffers[i].shape, width: "170px" },
        { key: "source", title: "source", text: (i) => buffers[i].place, width: "140px" },
        { key: "op", title: "op_name", text: (i) => lastParts(buffers[i].op_name), width: "260px", lesser: true },
      ],
      sort: { key: "bytes", descending: true },
      choose: (i) => this.choosePlace(buffers[i].key),
      rowClass: (i) => (buffers[i].key && buffers[i].key === this.context.selection.line ? "wb-kin" : ""),
      signal: this.context.signal,
    });
  }

  /** The kernel's picture, as large as its place. */
  private place(svg: SVGSVGElement): void {
    svg.removeAttribute("viewBox");
    svg.setAttribute("aria-hidden", "true");
    for (const side of ["width", "height"]) svg.setAttribute(side, "100%");
    this.plot = svg.querySelector("svg");
    this.plot?.append(this.marks, this.cursor);
    this.slider.append(svg as unknown as Node);
  }

  private mark(): void {
    this.marks.setAttribute("d", [...this.marked].map((i) => `M${i} 0.94V1`).join(""));
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, String(this.at));
  }

  private listen(): void {
    const pointed = (event: MouseEvent) => {
      const { x, width } = placeIn(event, this.slider);
      const [left, wide] = ["x", "width"].map((name) => Number.parseFloat(this.plot?.getAttribute(name) ?? "")); // %
      return Math.round((((100 * x) / width - left) / wide) * (this.live.length - 1));
    };
    this.slider.addEventListener("pointermove", (event) => this.go(pointed(event)));
    this.slider.addEventListener("click", (event) => {
      this.go(pointed(event));
      this.choose();
    });
    this.slider.addEventListener("keydown", (event) => {
      const page = Math.max(1, Math.round(this.live.length / 20));
      const steps: Record<string, number> = {
        ArrowRight: 1,
        ArrowUp: 1,
        ArrowLeft: -1,
        ArrowDown: -1,
        PageUp: page,
        PageDown: -page,
        Home: -this.live.length,
        End: this.live.length,
      };
      if (steps[event.key]) this.go(this.at + steps[event.key]);
      else if (event.key === "Enter" || event.key === " ") this.choose();
      else return;
      consume(event);
    });
  }

  private choose(): void {
    const instruction = this.moments[this.at];
    if (instruction) this.context.select({ instruction, line: this.keys[this.at] || null, node: null });
  }

  private go(to: number): void {
    this.at = clamp(to, 0, this.live.length - 1);
    this.tell();
    this.mark();
  }

  private tell(): void {
    if (!this.live.length) return;
    const from = this.places[this.at] ? `, from ${unbroken(this.places[this.at])}` : "";
    const name = this.moments[this.at] || "an instruction that is not listed";
    const assigned = this.context.state("peak") ?? 0;
    const more = assigned > 1.01 * this.live[this.peak] ? `; the compiler assigns ${formatBytes(assigned)}` : "";
    const peak = this.at === this.peak ? ` · this is the maximum${more}` : "";
    const position = `${formatCount(this.at + 1)} of ${formatCount(this.live.length)}`;
    this.status.textContent = `${position}: ${formatBytes(this.live[this.at])} alive while ${name} runs${from}${peak}`;
    this.slider.setAttribute("aria-valuenow", String(this.at + 1));
    this.slider.setAttribute("aria-valuetext", this.status.textContent);
  }

  private follow(): void {
    const { instruction, line } = this.context.selection;
    const chosen = (i: number) =>
      instruction ? this.moments[i] === instruction : Boolean(line) && this.keys[i] === line;
    this.marked = new Set(this.moments.map((_, i) => i).filter(chosen));
    if (instruction && this.marked.size) this.go([...this.marked][0]);
    this.table.draw();
    this.mark();
    const here = this.buffers.filter(({ key }) => key && key === line);
    const rows = here.map((each) => [each.name, formatBytes(each.bytes), each.shape]);
    const title = "Buffers of the selected line at the peak";
    const table: Block = { form: "table", title, columns: ["buffer", "bytes", "shape"], rows };
    if (this.inspector.show(here.length ? [table] : [])) return;
    const blocks: Block[] = [{ form: "facts", title: "", rows: this.context.state("facts") }];
    for (const text of this.context.state("notes")) blocks.push({ form: "note", title: "", text });
    showDetails(this.context, this.detail, {
      title: "Memory of one device",
      kind: "broadcast",
      subtitle: "as planned by the compiler",
      blocks,
    });
  }
}

export const memory: RenderView<"memory"> = (host, context) => {
  new Memory(host, context);
};
