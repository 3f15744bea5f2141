// Devices by mesh axis, on the torus or by host: the kernel's picture, in which the cells of many devices are painted.

import { badge, onReport } from "../lib/badges";
import { type Block, showDetails } from "../lib/details";
import { button, h, menu, type Option, pictureFrom, replace, s, setTabIndex } from "../lib/dom";
import { formatAs, formatBytes, formatCount, plural } from "../lib/format";
import { consume } from "../lib/keyboard";
import { type Box, boxOf, cellAt, placeOver } from "../lib/pixels";
import { position, range } from "../lib/scale";
import { split } from "../lib/split";
import type { DeviceFigure, MeshCollective, MeshLayout } from "../lib/states";
import { css, legend, type Rgb, ramp, SERIES, seriesColour } from "../lib/theme";
import type { RenderView, ViewContext } from "../lib/view";
import { gridOf, Mesh, nearest, neighbour } from "./mesh-data";
import { drawLinks, linksOf, type Spot, spotIn } from "./mesh-overlay";

const MOST_RINGS = 64; // devices marked around a canvas at once
const SIZES = [0.85, 1.2]; // of the picture, so that its text can be read
const HEIGHT = 460; // pixels of painted cells
const LEAST_RING = 9;
const MOST_SHARDS = 60;

const rgbOf = (text: string): Rgb => {
  const [r, g, b] = (text.match(/\w\w/g) ?? ["80", "80", "80"]).map((part) => Number.parseInt(part, 16));
  return [r, g, b];
};

class MeshPane {
  private readonly mesh: Mesh;
  private readonly place = h("div", { class: "wb-scrolls" });
  private readonly detail: HTMLElement;
  private readonly legendBox = h("span", { class: "wb-legendbox" });
  private readonly tip = h("p", { class: "wb-note wb-hovered", role: "status" });
  private choice: DeviceFigure | undefined;
  private values = new Float32Array();
  private layout: MeshLayout;
  private places = new Float32Array();
  private grid = new Int32Array();
  private cards: SVGElement[] = [];
  private canvas: HTMLCanvasElement | null = null;
  private cells: Box = [0, 0, 0, 0]; // what the canvas covers
  private cursor = 0;
  private readonly rings = s("g", { "aria-hidden": "true" });
  private readonly overlay = s("g", { "aria-hidden": "true" });
  private readonly linkWords = h("p", { class: "wb-note", role: "status" });
  private readonly sendings: readonly MeshCollective[];
  private quiet = false; // the reader wants no links
  private readonly sent: readonly HTMLElement[]; // a row for each collective

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"mesh">,
  ) {
    this.mesh = new Mesh(context);
    this.layout = this.mesh.layouts[0];
    this.sendings = context.state("collectives") ?? [];
    this.sent = this.sendings.map((sending) => this.rowOf(sending));
    this.choice = this.telling();
    const { node, main, detail } = split(context, "Details of the selected device", 0.62);
    this.detail = detail;
    main.append(this.tools(), this.place);
    host.append(node);
    this.arrange();
    context.onSelection(() => this.follow());
    context.theme.onChange(() => {
      this.paint();
      this.mark();
    });
  }

  /** The first thing that tells devices apart by more than their own number. */
  private telling(): DeviceFigure | undefined {
    const { choices } = this.mesh;
    const varies = (choice: DeviceFigure) => range(this.mesh.values(choice))[1] > range(this.mesh.values(choice))[0];
    const few = choices.find(
      (choice) => choice.kind === "group" && varies(choice) && range(this.mesh.values(choice))[1] < SERIES,
    );
    const number = choices.find((choice) => choice.kind === "number" && varies(choice));
    // Stripes of thousands of places say nothing: where all hold the same, one colour and a sentence say so.
    return number ?? (this.context.state("few") ? (few ?? choices[0]) : undefined);
  }

  /** What every device holds, where none holds another amount. */
  private sameForAll(): string {
    const numbers = this.mesh.choices.filter(({ kind }) => kind === "number");
    const amounts = numbers.map((each) => `${each.label}: ${formatAs(each.unit, this.mesh.values(each)[0])}`);
    return `the same on every device${amounts.length ? ` · ${amounts.join(" · ")}` : ""}`;
  }

  private tools(): HTMLElement {
    const { mesh } = this;
    const layouts = mesh.layouts.map((each): Option<string> => [each.key, each.label]);
    const arrange = menu("Arrange devices by", layouts, this.layout.key, (key) => {
      this.layout = mesh.layouts.find((each) => each.key === key) ?? this.layout;
      this.arrange();
    });
    const same: Option<number>[] = this.choice ? [] : [[-1, "contents: the same"]];
    const choices = [...same, ...mesh.choices.map((each, i): Option<number> => [i, each.label])];
    const colour = menu("Colour devices by", choices, this.choice ? mesh.choices.indexOf(this.choice) : -1, (i) => {
      this.choice = mesh.choices[i];
      this.paint();
    });
    const axes = mesh.axes
      .filter(({ size }) => size > 1)
      .map(({ name }) => {
        const made = button(
          name,
          () => this.context.select({ axis: this.context.selection.axis === name ? null : name }),
          { "data-axis": name, "data-tip": `Colour the groups of devices that communicate over ${name}.` },
        );
        const marked = h("span", { class: "wb-row" }, made);
        onReport(this.context, () => replace(marked, made, badge(this.context, "axes", name)));
        return marked;
      });
    return h(
      "div",
      { class: "wb-tools" },
      layouts.length > 1 ? h("label", {}, "Arrange by ", arrange) : null,
      h("label", {}, "Colour by ", colour),
      h("span", { class: "wb-row" }, "groups over", axes),
      this.legendBox,
    );
  }

  private rowOf(sending: MeshCollective): HTMLElement {
    const choose = () => {
      this.quiet = sending === this.sending;
      this.context.select({ instruction: this.quiet ? null : sending.names[0] });
      this.link();
    };
    const name = button(sending.label, choose, { class: "wb-link" });
    return h("tr", {}, h("td", {}, name), h("td", { class: "wb-num" }, formatBytes(sending.sent)));
  }

  /** What one device sends, largest first: the links of the chosen row are drawn. */
  private sentTable(): HTMLElement | null {
    if (!this.sent.length) return null;
    const heads = [
      h("th", { scope: "col" }, "collectives: choose one to see its links"),
      h("th", { scope: "col", class: "wb-num" }, "sent by one device in one call"),
    ];
    const label = "Collectives over the mesh, largest first";
    const parts = [h("thead", {}, h("tr", {}, heads)), h("tbody", {}, this.sent)];
    return h("div", { class: "wb-sent" }, h("table", { "aria-label": label }, parts));
  }

  /** The collective whose links are drawn: at first the one that sends most. */
  private get sending(): MeshCollective | null {
    const { instruction } = this.context.selection;
    const chosen = this.sendings.find(({ names }) => names.includes(instruction ?? ""));
    return chosen ?? (this.quiet || instruction ? null : (this.sendings[0] ?? null));
  }

  /** The links of the chosen collective, and those that the torus has. */
  private link(): void {
    const { mesh, context, layout, sending } = this;
    this.sendings.forEach((each, i) => {
      this.sent[i].classList.toggle("wb-selected", each === sending);
      this.sent[i].querySelector("button")?.setAttribute("aria-pressed", String(each === sending));
    });
    const dimensions = context.state("coords");
    const torus =
      layout.key === "torus" && dimensions
        ? {
            coords: context.array("mesh.coords"),
            dimensions,
            wraps: context.state("wraps") ?? [],
          }
        : null;
    const found = linksOf(mesh, sending, torus, this.chosen);
    this.linkWords.textContent = found.words;
    drawLinks(this.overlay, found, (device) => this.spotOf(device));
  }

  private spotOf(device: number): Spot {
    const card = this.cards[device]?.querySelector(".wb-card");
    if (card) return spotIn(boxOf(card));
    const [left, top, width, height] = this.cells;
    const [wide, high] = [width / this.layout.columns, height / this.layout.rows];
    return spotIn([left + this.places[2 * device] * wide, top + this.places[2 * device + 1] * high, wide, high]);
  }

  private arrange(): void {
    const { layout, context } = this;
    this.places = new Float32Array(context.array(`mesh.places.${layout.key}`));
    this.grid = new Int32Array(gridOf(layout, this.places));
    const abstract = context.state("abstract") ? " · no devices attached" : "";
    const svg = pictureFrom(layout.svg);
    const [, , width, height] = boxOf(svg);
    svg.append(this.rings, this.overlay);
    this.cards = [...svg.querySelectorAll<SVGElement>("[data-device]")];
    const cells = svg.querySelector("[data-cells]");
    this.canvas = cells && this.makeCanvas();
    const frame = h("div", { class: "wb-meshframe" }, this.canvas, svg as unknown as Node);
    const caption = h(
      "p",
      { class: "wb-note" },
      [layout.reading, this.contents()].filter(Boolean).join(" · "),
      abstract,
    );
    const most = SIZES[1] * width;
    frame.style.maxWidth = `${cells ? Math.min(most, (HEIGHT * width) / height) : most}px`;
    if (this.canvas && cells) {
      this.cells = boxOf(cells);
      placeOver(this.canvas, this.cells, [width, height]);
      svg.setAttribute("aria-hidden", "true"); // the canvas has its words
    } else {
      frame.style.minWidth = `${SIZES[0] * width}px`;
      this.nameCards(svg);
    }
    for (const side of ["width", "height"]) svg.removeAttribute(side);
    replace(this.place, caption, frame, this.canvas && this.tip, this.linkWords, this.sentTable());
    this.follow();
  }

  /** What stands in a card; nothing where devices are painted without words. */
  private contents(): string {
    if (this.canvas) return "";
    const inside = this.mesh.heldBy(0).map(([name]) => name);
    const place = `place along ${this.mesh.axes.map(({ name }) => name).join(", ")}`;
    const written = this.cards.some((card) => card.querySelector(".wb-cardcontents")?.textContent);
    if (!written) return "in each card: the device's id";
    return `in each card: the device's id and its ${inside.length ? inside.join(", ") : place}`;
  }

  private colours(): { fill: (value: number) => Rgb; grouped: boolean } {
    const [low, high] = range(this.values);
    const series = Array.from({ length: SERIES }, (_, i) => rgbOf(seriesColour(this.place, i)));
    const axis = this.context.selection.axis;
    if (!this.choice && !axis) return { fill: () => rgbOf(this.context.theme.colour("clients-soft")), grouped: false };
    if ((this.choice?.kind === "group" && high < SERIES) || axis)
      return { fill: (value) => series[value % SERIES], grouped: true };
    return { fill: (value) => ramp(position(value, low, high, false)), grouped: false };
  }

  /** The column that is coloured: groups along the chosen axis, else what the menu says. */
  private colourValues(): Float32Array {
    const { axis } = this.context.selection;
    if (axis && this.mesh.axes.some(({ name }) => name === axis)) return new Float32Array(this.mesh.groupsAlong(axis));
    return this.choice ? new Float32Array(this.mesh.values(this.choice)) : new Float32Array(this.mesh.ids.length);
  }

  private paint(): void {
    this.values = new Float32Array(this.colourValues());
    const { fill, grouped } = this.colours();
    const [low, high] = range(this.values);
    const unit = this.choice?.unit ?? "count";
    const { axis } = this.context.selection;
    const placed = !axis && this.choice?.key.startsWith("axis"); // its card says it already
    const groups = placed ? "" : plural(high + 1, axis ? "group" : (this.choice?.label ?? ""));
    const same = !this.choice && !grouped;
    replace(
      this.legendBox,
      grouped
        ? groups + (high >= SERIES ? "; colours repeat" : "")
        : same
          ? this.sameForAll()
          : legend("", formatAs(unit, low), formatAs(unit, high)),
    );
    this.cards.forEach((card, i) => {
      card.querySelector<SVGElement>(".wb-cardhue")?.style.setProperty("fill", css(fill(this.values[i])));
      const number = card.querySelector(".wb-cardnumber");
      if (number) number.textContent = grouped && !placed ? formatCount(this.values[i]) : "";
    });
    this.paintCanvas(fill);
  }

  private paintCanvas(fill: (value: number) => Rgb): void {
    const pen = this.canvas?.getContext("2d");
    if (!this.canvas || !pen) return;
    const holders = this.mesh.holding(this.context.selection.client);
    const lit = holders.size > MOST_RINGS ? holders : null; // too many to ring: the others are dimmed
    const image = pen.createImageData(this.layout.columns, this.layout.rows);
    for (let i = 0; i < this.mesh.ids.length; i++) {
      const at = 4 * (this.places[2 * i + 1] * this.layout.columns + this.places[2 * i]);
      const [r, g, b] = fill(this.values[i]);
      image.data.set([r, g, b, lit && !lit.has(i) ? 70 : 255], at);
    }
    pen.putImageData(image, 0, 0);
  }

  private choose(index: number): void {
    this.cursor = index;
    this.context.select({ device: this.mesh.ids[index] });
  }

  /** Arrow keys by the picture's own rows and columns, whatever the order of the devices. */
  private onKey(event: KeyboardEvent, at: number, moved: (index: number) => void): void {
    const steps: Record<string, [number, number]> = {
      ArrowRight: [1, 0],
      ArrowLeft: [-1, 0],
      ArrowDown: [0, 1],
      ArrowUp: [0, -1],
    };
    const step = steps[event.key];
    if (step) moved(neighbour(this.layout, this.places, this.grid, at, ...step));
    else if (event.key === "Home") moved(0);
    else if (event.key === "End") moved(this.mesh.ids.length - 1);
    else if (event.key === "Enter" || event.key === " ") this.choose(at);
    else if (event.key === "Escape") this.context.select({ device: null });
    else return;
    consume(event);
  }

  /** Names, roles and keys for the devices of the picture. */
  private nameCards(svg: SVGSVGElement): void {
    svg.setAttribute("role", "group");
    this.cards.forEach((card, i) => {
      card.setAttribute("role", "button");
      card.setAttribute("aria-label", this.mesh.spoken(i));
      card.append(s("title", {}, this.mesh.spoken(i)));
      setTabIndex(card, i ? -1 : 0);
    });
    const focus = (index: number) => {
      this.cards.forEach((card, i) => setTabIndex(card, i === index ? 0 : -1));
      this.cards[index].focus();
    };
    const under = (event: Event) =>
      this.cards.indexOf((event.target as Element).closest("[data-device]") as SVGElement);
    svg.addEventListener("click", (event) => {
      if (under(event) >= 0) this.choose(under(event));
    });
    svg.addEventListener("keydown", (event) => {
      if (under(event) >= 0) this.onKey(event, under(event), focus);
    });
  }

  private makeCanvas(): HTMLCanvasElement {
    const { columns, rows, reading } = this.layout;
    const canvas = h("canvas", {
      class: "wb-pixels",
      role: "img",
      tabindex: 0,
      "aria-label": `${this.context.state("sentence")}. ${reading}. Arrow keys move, Enter chooses.`,
      width: columns,
      height: rows,
    });
    const over = (event: MouseEvent) => nearest(this.layout, this.grid, cellAt(event, canvas, columns, rows));
    const moved = (index: number) => {
      this.cursor = index;
      this.tell(index);
      this.mark();
    };
    canvas.addEventListener("mousemove", (event) => this.tell(over(event)));
    canvas.addEventListener("mouseleave", () => this.tell(-1));
    canvas.addEventListener("click", (event) => {
      if (over(event) >= 0) this.choose(over(event));
    });
    canvas.addEventListener("keydown", (event) => this.onKey(event, this.cursor, moved));
    for (const event of ["focus", "blur"]) canvas.addEventListener(event, () => this.mark());
    return canvas;
  }

  private tell(index: number): void {
    const what =
      this.choice && index >= 0
        ? ` · ${this.choice.label}: ${formatAs(this.choice.unit, this.mesh.values(this.choice)[index])}`
        : "";
    this.tip.textContent = index < 0 ? "" : `${this.mesh.spoken(index)}${what}`;
  }

  private get chosen(): number {
    const { device } = this.context.selection;
    return device === undefined ? -1 : this.mesh.ids.indexOf(device);
  }

  /** Rings around the cursor, the chosen device, its group, and the devices of the chosen client. */
  private mark(): void {
    const { chosen } = this;
    const group = this.mesh.groupOf(chosen, this.context.selection.axis);
    const holders = this.mesh.holding(this.context.selection.client);
    this.cards.forEach((card, i) => {
      card.classList.toggle("wb-selected", i === chosen);
      card.classList.toggle("wb-holds", holders.has(i));
      card.classList.toggle("wb-group", group.has(i) && i !== chosen);
      card.setAttribute("aria-pressed", String(i === chosen));
    });
    this.rings.replaceChildren();
    if (!this.canvas) return;
    if (holders.size <= MOST_RINGS) for (const index of holders) this.ring(index, "client");
    for (const index of [...group].slice(0, 4 * MOST_RINGS)) this.ring(index, "group");
    if (chosen >= 0) this.ring(chosen, "chosen");
    if (document.activeElement === this.canvas) this.ring(this.cursor, "cursor");
  }

  private ring(index: number, kind: string): void {
    const { x, y, half } = this.spotOf(index);
    const [width, height] = half.map((each) => Math.max(2 * each, LEAST_RING));
    const box = { x: x - width / 2, y: y - height / 2, width, height, rx: 2 };
    this.rings.append(s("rect", { ...box, class: `wb-ring wb-ring-${kind}` }));
  }

  private follow(): void {
    this.paint();
    this.mark();
    this.link();
    for (const each of this.detail.parentElement?.querySelectorAll<HTMLElement>("[data-axis]") ?? [])
      each.setAttribute("aria-pressed", String(each.dataset.axis === this.context.selection.axis));
    if (this.chosen < 0) this.overview();
    else this.describe(this.chosen);
  }

  private overview(): void {
    const { mesh, context } = this;
    const rows = mesh.axes.map(({ name, size, type, hops }): [string, string] => [
      `mesh axis ${name}`,
      `${formatCount(size)} devices, ${type}${hops ? `; hops to the next: ${hops}` : ""}`,
    ]);
    const text =
      "Select a device: with the mouse, or with the arrow keys and Enter. Select a mesh axis above to colour the groups " +
      "of devices that communicate over it.";
    const blocks: Block[] = [
      { form: "facts", title: "", rows },
      { form: "note", title: "Look closer", text },
    ];
    showDetails(context, this.detail, {
      title: plural(mesh.ids.length, "device"),
      kind: "server",
      subtitle: context.state("sentence"),
      blocks,
    });
  }

  private factsOf(index: number): [string, string][] {
    const { mesh, context } = this;
    const rows = mesh.axes.map(({ name, size }, i): [string, string] => [
      `place along ${name}`,
      `${mesh.position(index, i)} of ${size}`,
    ]);
    const kinds = context.state("kinds");
    if (kinds.length === 1) rows.push(["kind", kinds[0]]);
    if (context.state("hosts") > 1) rows.push(["host", formatCount(context.array("mesh.host")[index])]);
    const coords = context.state("coords");
    if (coords) {
      rows.push([
        "torus coordinates",
        [...context.array("mesh.coords").subarray(index * coords, (index + 1) * coords)].join(" × "),
      ]);
      rows.push(["core on chip", String(context.array("mesh.core")[index])]);
    }
    for (const choice of mesh.choices)
      if (choice.kind !== "group") rows.push([choice.label, formatAs(choice.unit, mesh.values(choice)[index])]);
    return rows;
  }

  private describe(index: number): void {
    const { mesh, context } = this;
    const blocks: Block[] = [{ form: "facts", title: "", rows: this.factsOf(index) }];
    const held = mesh
      .heldBy(index)
      .map(([name, start, stop, padding]) => [
        name,
        stop > start ? `${start}–${stop - 1}` : "none",
        formatCount(stop - start),
        formatCount(padding),
      ]);
    if (held.length)
      blocks.push({
        form: "table",
        title: "Clients here",
        columns: ["placement", "members", "count", "padding"],
        rows: held,
      });
    const shards = mesh.shardsOf(index);
    if (shards.length) {
      const rows = shards.slice(0, MOST_SHARDS).map(([name, slice, bytes]) => [name, slice, formatBytes(bytes)]);
      const note = shards.length > MOST_SHARDS ? `and ${shards.length - MOST_SHARDS} more` : "";
      blocks.push({ form: "table", title: "Shards here", columns: ["array", "slice", "bytes"], rows, note });
    }
    const axes = mesh.axes
      .filter(({ size }) => size > 1)
      .map(({ name }) =>
        button(
          `its group along ${name}`,
          () => context.select({ axis: context.selection.axis === name ? null : name }),
          { "aria-pressed": String(context.selection.axis === name) },
        ),
      );
    showDetails(context, this.detail, {
      title: mesh.nameOf(index),
      kind: "clients",
      subtitle: "device",
      blocks,
      extra: [h("div", { class: "wb-row wb-steps" }, axes)],
    });
  }
}

export const mesh: RenderView<"mesh"> = (host, context) => {
  if (context.state("count")) new MeshPane(host, context);
  else host.append(h("p", { class: "wb-note wb-scrolls" }, "This mesh has no devices."));
};
