// An array of any rank as blocks: two dimensions span a panel, the others make small multiples, or sliders.

import { h, menu, type Option, replace, s } from "../lib/dom";
import { formatCount } from "../lib/format";
import { clamp, rove } from "../lib/keyboard";
import type { ShardingLeaf } from "../lib/states";
import { seriesColour } from "../lib/theme";
import type { ViewContext } from "../lib/view";

const MOST = 48; // blocks drawn along one side
const PANELS = 24; // small multiples drawn at once
const WIDTH = 600; // at most
const LEAST = 240;

type Slice = Record<number, number>;
interface Block {
  row: number;
  column: number;
  devices: number[];
}
interface Grid {
  rows: number;
  columns: number;
  cell: { w: number; h: number };
  across: number;
  wide: number;
  head: number;
  panelHeight: number;
}

export class ShardPicture {
  readonly node = h("div", { class: "wb-wide" });
  readonly menus = h("div", { class: "wb-row" });
  private leaf: ShardingLeaf | null = null;
  private corners: Float32Array = new Float32Array();
  private row: number | null = null;
  private column: number | null = null;
  private others: number[] = [];
  private slice: Slice = {};
  private held = new Map<string, number[]>();

  private width = WIDTH; // pixels: text keeps its size in a narrow panel

  constructor(private readonly context: ViewContext<"sharding">) {
    const watch = new ResizeObserver(() => this.fit());
    watch.observe(this.node);
    context.signal.addEventListener("abort", () => watch.disconnect());
  }

  private fit(): void {
    const room = this.node.clientWidth;
    const width = clamp(Math.floor(room) - 2, LEAST, WIDTH);
    if (!room || width === this.width) return; // without a width the view is hidden
    this.width = width;
    this.draw();
  }

  show(leaf: ShardingLeaf, corners: Float32Array): void {
    this.leaf = leaf;
    this.corners = corners;
    const rank = leaf.shape.length;
    const dimensions = leaf.shape.map((_, d) => d);
    const cut = dimensions.filter((d) => leaf.blocks[d] > 1);
    const order = [...cut, ...dimensions.filter((d) => !cut.includes(d))].slice(0, 2).sort((a, b) => a - b);
    this.row = rank > 1 ? order[0] : null;
    this.column = rank > 1 ? order[1] : rank ? 0 : null;
    this.slice = {};
    this.arrange();
  }

  private arrange(): void {
    if (!this.leaf) return;
    if (this.row !== null && this.row === this.column)
      this.column = this.leaf.shape.findIndex((_, d) => d !== this.row);
    this.others = this.leaf.shape.map((_, d) => d).filter((d) => d !== this.row && d !== this.column);
    for (const d of this.others) this.slice[d] ??= 0;
    this.drawMenus(this.leaf);
    this.draw();
  }

  private get cutOthers(): number[] {
    return this.others.filter((d) => (this.leaf?.blocks[d] ?? 1) > 1);
  }

  private get multiples(): boolean {
    return this.cutOthers.reduce((count, d) => count * (this.leaf?.blocks[d] ?? 1), 1) <= PANELS;
  }

  private drawMenus(leaf: ShardingLeaf): void {
    if (leaf.shape.length < 3) return replace(this.menus);
    const options = leaf.shape.map((size, d): Option<number> => [d, `dimension ${d} (${formatCount(size)})`]);
    const rows = menu("rows", options, this.row ?? 0, (d) => {
      this.row = d;
      this.arrange();
    });
    const columns = menu("columns", options, this.column ?? 0, (d) => {
      this.column = d;
      this.arrange();
    });
    const sliders = this.multiples
      ? []
      : this.cutOthers.map((d) => {
          const label = `slice of dimension ${d} (${formatCount(leaf.shape[d])})`;
          const input = h("input", {
            type: "range",
            min: 0,
            max: leaf.blocks[d] - 1,
            value: this.slice[d] ?? 0,
            "aria-label": label,
          });
          input.addEventListener("input", () => {
            this.slice[d] = Number(input.value);
            this.draw();
          });
          return h("label", {}, label, input);
        });
    replace(this.menus, h("label", {}, "rows ", rows), h("label", {}, "columns ", columns), sliders);
  }

  /** The slices to draw: every one as a panel, or the one that the sliders name. */
  private slices(leaf: ShardingLeaf): Slice[] {
    if (!this.multiples) return [{ ...this.slice }];
    let found: Slice[] = [{}];
    for (const d of this.others)
      found = found.flatMap((slice) => Array.from({ length: leaf.blocks[d] }, (_, at) => ({ ...slice, [d]: at })));
    return found;
  }

  /** Blocks of one slice, each with the devices that hold it. */
  private blocksOf(leaf: ShardingLeaf, slice: Slice): Map<string, Block> {
    const rank = leaf.shape.length;
    const found = new Map<string, Block>();
    leaf.devices.forEach((device, k) => {
      const corner = this.corners.subarray(k * rank, (k + 1) * rank);
      if (!this.others.every((d) => corner[d] === slice[d])) return;
      const key = corner.join(",");
      const block = found.get(key) ?? {
        row: this.row === null ? 0 : corner[this.row],
        column: this.column === null ? 0 : corner[this.column],
        devices: [],
      };
      block.devices.push(device);
      found.set(key, block);
    });
    return found;
  }

  private gridOf(leaf: ShardingLeaf, panels: number): Grid {
    const rows = this.row === null ? 1 : leaf.blocks[this.row];
    const columns = this.column === null ? 1 : leaf.blocks[this.column];
    const shown = { rows: Math.min(rows, MOST), columns: Math.min(columns, MOST) };
    const many = panels > 1;
    const across = many ? clamp(Math.floor(this.width / Math.max(shown.columns * 30, 118)), 1, panels) : 1;
    const wide = (this.width - 14 * (across - 1)) / across;
    const tall = many ? 150 : 230;
    const cell = { w: wide / shown.columns, h: clamp(tall / shown.rows, 14, many ? 40 : 56) };
    const head = many ? 18 : 0;
    return { rows, columns, cell, across, wide, head, panelHeight: head + cell.h * shown.rows + (many ? 10 : 0) };
  }

  private nameOf(device: number): string {
    return this.context.state("names")[device] ?? `device ${device}`;
  }

  /** The elements of a shard as slices, such as `: [0:16, 8:16]`. */
  private rangesOf(key: string): string {
    const { shape, blocks } = this.leaf ?? { shape: [], blocks: [] };
    if (!key || !shape.length) return "";
    const slices = key.split(",").map((at, d) => {
      const size = Math.ceil(shape[d] / blocks[d]);
      return `${Number(at) * size}:${Math.min((Number(at) + 1) * size, shape[d])}`;
    });
    return `: [${slices.join(", ")}]`;
  }

  private drawBlock(key: string, devices: number[], x: number, y: number, cell: Grid["cell"], hue: string): SVGElement {
    const chosen = this.context.selection.device;
    const held = chosen !== undefined && devices.includes(chosen);
    const shard = key ? `shard ${key.replaceAll(",", ", ")}` : "shard";
    const label = `${shard}${this.rangesOf(key)} on ${devices.map((device) => this.nameOf(device)).join(", ")}`;
    const few =
      devices.length > 3
        ? `${devices
            .slice(0, 2)
            .map((d) => this.nameOf(d))
            .join(", ")} +${devices.length - 2}`
        : devices.map((d) => this.nameOf(d)).join(", ");
    const words =
      cell.w > few.length * 6.6 && cell.h > 15 ? few : cell.w > 18 && cell.h > 13 ? String(devices[0]) : null;
    const box = { x: x + 1.5, y: y + 1.5, width: Math.max(cell.w - 3, 1), height: Math.max(cell.h - 3, 1), rx: 4 };
    return s(
      "g",
      { role: "button", "data-block": key, "aria-label": label, "aria-pressed": String(held), class: "wb-stage" },
      s("rect", {
        ...box,
        fill: hue,
        "fill-opacity": held ? 0.55 : 0.2,
        stroke: hue,
        "stroke-width": held ? 3 : 1,
        class: "wb-card",
      }),
      words
        ? s(
            "text",
            { x: x + cell.w / 2, y: y + cell.h / 2 + 4, "text-anchor": "middle", "font-size": 11, class: "wb-fill-fg" },
            words,
          )
        : null,
      s("title", {}, label),
    );
  }

  draw(): void {
    const { leaf } = this;
    if (!leaf) return;
    if (!leaf.devices.length)
      return replace(this.node, h("p", { class: "wb-note" }, `Its shards are summarised: ${leaf.sentence}`));
    const panels = this.slices(leaf);
    const grid = this.gridOf(leaf, panels.length);
    const height = Math.ceil(panels.length / grid.across) * grid.panelHeight;
    const svg = s("svg", {
      viewBox: `0 0 ${this.width + 2} ${height + 24}`,
      role: "group",
      "aria-label": leaf.sentence,
      class: "wb-shards",
    });
    svg.style.maxWidth = `${this.width + 2}px`;
    this.held.clear();
    panels.forEach((slice, number) => svg.append(...this.drawPanel(leaf, grid, slice, number, panels.length > 1)));
    svg.append(
      s(
        "text",
        { x: 2, y: height + 17, "font-size": 11, class: "wb-fill-muted" },
        this.caption(leaf, grid, panels.length),
      ),
    );
    this.listen(svg, grid);
    const at = (document.activeElement as SVGElement | null)?.dataset?.block;
    const inside = this.node.contains(document.activeElement);
    replace(this.node, svg);
    // A redraw must not lose the keyboard's place.
    if (inside && at !== undefined)
      [...svg.querySelectorAll<SVGElement>("[data-block]")].find((each) => each.dataset.block === at)?.focus();
  }

  private drawPanel(leaf: ShardingLeaf, grid: Grid, slice: Slice, number: number, many: boolean): SVGElement[] {
    const x0 = 1 + (number % grid.across) * (grid.wide + 14);
    const y0 = 1 + Math.floor(number / grid.across) * grid.panelHeight;
    const made: SVGElement[] = [];
    if (many) {
      const range = (d: number) =>
        `dim ${d}: ${slice[d] * leaf.shard_shape[d]}–${Math.min((slice[d] + 1) * leaf.shard_shape[d], leaf.shape[d]) - 1}`;
      made.push(
        s(
          "text",
          { x: x0 + 2, y: y0 + 12, "font-size": 11, class: "wb-fill-muted" },
          this.cutOthers.map(range).join(", "),
        ),
      );
    }
    for (const [key, { row, column, devices }] of this.blocksOf(leaf, slice)) {
      if (row >= MOST || column >= MOST) continue;
      const hue = seriesColour(this.node, number * grid.rows * grid.columns + row * grid.columns + column);
      this.held.set(key, devices);
      made.push(
        this.drawBlock(key, devices, x0 + column * grid.cell.w, y0 + grid.head + row * grid.cell.h, grid.cell, hue),
      );
    }
    return made;
  }

  private caption(leaf: ShardingLeaf, { rows, columns }: Grid, panels: number): string {
    const count = `${rows} × ${columns} shards`;
    const cut =
      rows > MOST || columns > MOST
        ? `the first ${Math.min(rows, MOST)} × ${Math.min(columns, MOST)} of ${count}`
        : count;
    const where = panels > 1 ? `${panels} slices of ${cut}` : `${cut}${this.cutOthers.length ? " in this slice" : ""}`;
    return `${where}; each of ${leaf.rows[1][1]}`;
  }

  private listen(svg: SVGSVGElement, grid: Grid): void {
    const pick = (node: SVGElement) => {
      const devices = this.held.get(node.dataset.block ?? "") ?? [];
      const { device } = this.context.selection;
      const next = device === undefined ? 0 : (devices.indexOf(device) + 1) % devices.length;
      this.context.select({ device: devices[next] });
    };
    svg.addEventListener("click", (event) => {
      const node = (event.target as Element).closest<SVGElement>("[data-block]");
      if (node) pick(node);
    });
    const nodes = [...svg.querySelectorAll<SVGElement>("[data-block]")];
    const step = Math.min(grid.columns, MOST);
    rove<SVGElement>(svg, { items: () => nodes, choose: pick, moves: { ArrowDown: step, ArrowUp: -step } });
  }
}
