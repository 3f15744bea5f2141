// Clients as a heat map or as bars on a canvas: pointed at, walked through with arrow keys, outlined where chosen.
import { liveCanvas } from "../lib/canvas";
import { h, replace } from "../lib/dom";
import { formatAs } from "../lib/format";
import { clamp, consume } from "../lib/keyboard";
import { position, range, suitsLog, ticks } from "../lib/scale";
import { placeIn } from "../lib/stage";
import { css, ramp } from "../lib/theme";
import type { ViewContext } from "../lib/view";

export type ChartMode = "heat" | "bars";
export interface ChartData {
  mode: ChartMode;
  order: readonly number[];
  value: (client: number) => number;
  unit: string;
  label: string;
  name: (client: number) => string;
  /** Clients of one row, where they come in groups; null: as fits. */
  row: number | null;
  pinned: ReadonlySet<number>;
  log: boolean;
}

const EDGE = { left: 66, right: 10, top: 10, bottom: 20 };

/** Cells in a row of a heat map of that shape. */
export function cellsAcross(count: number, width: number, height: number, row: number | null): number {
  if (row !== null) return row;
  const fitting = clamp(Math.ceil(Math.sqrt((count * width) / Math.max(height, 1))), 1, Math.max(1, count));
  const near = Array.from({ length: fitting }, (_, i) => (i % 2 ? fitting - (i + 1) / 2 : fitting + i / 2));
  return near.find((across) => across > fitting / 2 && count % across === 0) ?? fitting; // whole rows where some are near
}

export class ClientChart {
  readonly node = h("div", { class: "wb-clientchart" });
  private readonly canvas = h("canvas", { tabindex: 0, role: "img" });
  private readonly tip = h("p", { class: "wb-note wb-clienttip", role: "status" });
  private readonly redraw: () => void;
  private data: ChartData | null = null;
  private cursor = -1;
  private across = 1;

  constructor(
    private readonly context: ViewContext,
    private readonly choose: (client: number) => void,
  ) {
    this.node.append(this.canvas, this.tip);
    this.redraw = liveCanvas(context, this.canvas, (pen, width, height) => this.draw(pen, width, height));
    this.canvas.addEventListener("pointermove", (event) => this.tell(this.at(event)));
    this.canvas.addEventListener("pointerleave", () => this.tell(-1));
    this.canvas.addEventListener("click", (event) => {
      const client = this.data?.order[this.at(event)];
      if (client !== undefined) this.choose(client);
    });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(data: ChartData): void {
    this.data = data;
    this.cursor = clamp(this.cursor, -1, data.order.length - 1);
    this.canvas.className = data.mode === "heat" ? "wb-pixels" : "wb-bars";
    this.canvas.setAttribute(
      "aria-label",
      `${data.label} of ${data.order.length} clients${data.log ? " on a logarithmic scale" : ""}. Arrow keys move, Enter chooses.`,
    );
    this.canvas.dataset.count = String(data.order.length);
    this.redraw();
  }

  private at(event: PointerEvent | MouseEvent): number {
    if (!this.data) return -1;
    const { order, mode } = this.data;
    const { x, y, width, height } = placeIn(event, this.canvas);
    if (mode === "bars") {
      const index = Math.floor(((x - EDGE.left) / (width - EDGE.left - EDGE.right)) * order.length);
      return index >= 0 && index < order.length ? index : -1;
    }
    const rows = Math.ceil(order.length / this.across);
    const index = Math.floor((y / height) * rows) * this.across + Math.floor((x / width) * this.across);
    return index >= 0 && index < order.length ? index : -1;
  }

  private onKey(event: KeyboardEvent): void {
    if (!this.data) return;
    const down = this.data.mode === "heat" ? this.across : 10;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: down, ArrowUp: -down }[event.key];
    if (step) {
      this.cursor = clamp(this.cursor + step, 0, this.data.order.length - 1);
      this.tell(this.cursor);
      this.redraw();
    } else if ((event.key === "Enter" || event.key === " ") && this.cursor >= 0)
      this.choose(this.data.order[this.cursor]);
    else return;
    consume(event);
  }

  private tell(index: number): void {
    const client = this.data?.order[index];
    if (!this.data || client === undefined) return replace(this.tip);
    replace(
      this.tip,
      `${this.data.name(client)} · ${this.data.label}: ${formatAs(this.data.unit, this.data.value(client))}`,
    );
  }

  private draw(pen: CanvasRenderingContext2D, width: number, height: number): void {
    if (!this.data?.order.length) return;
    if (this.data.mode === "heat") this.drawHeat(pen, this.data, width, height);
    else this.drawBars(pen, this.data, width, height);
  }

  /** A picture of one colour says why it is one. */
  private drawSame(pen: CanvasRenderingContext2D, words: string, width: number, height: number): void {
    const { theme } = this.context;
    pen.font = "600 13px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const wide = pen.measureText(words).width + 28;
    pen.fillStyle = theme.colour("bg");
    pen.beginPath();
    pen.roundRect((width - wide) / 2, height / 2 - 15, wide, 30, 6);
    pen.fill();
    pen.fillStyle = theme.colour("fg");
    pen.fillText(words, width / 2, height / 2);
  }

  private drawHeat(pen: CanvasRenderingContext2D, data: ChartData, width: number, height: number): void {
    const { order, value } = data;
    this.across = cellsAcross(order.length, width, height, data.row);
    const rows = Math.ceil(order.length / this.across);
    const [w, hgt] = [width / this.across, height / rows];
    const gap = Math.min(w, hgt) > 6 ? 1 : 0;
    const [low, high] = range(order.map(value));
    const flat = high > low ? null : this.context.theme.colour("clients-soft");
    order.forEach((client, i) => {
      const share = position(value(client), low, high, data.log);
      if (!Number.isFinite(value(client))) return;
      pen.fillStyle = flat ?? css(ramp(share));
      pen.fillRect(
        (i % this.across) * w,
        Math.floor(i / this.across) * hgt,
        w - gap + (gap ? 0 : 0.5),
        hgt - gap + (gap ? 0 : 0.5),
      );
    });
    const ring = (i: number, colour: string) => {
      pen.strokeStyle = colour;
      pen.lineWidth = 2;
      const [x, y] = [(i % this.across) * w, Math.floor(i / this.across) * hgt];
      pen.strokeRect(x - 1, y - 1, Math.max(w, 5) + 2, Math.max(hgt, 5) + 2);
    };
    this.rings(data).forEach(([i, colour]) => ring(i, colour));
    if (flat !== null && Number.isFinite(low))
      this.drawSame(pen, `${formatAs(data.unit, low)} at every client`, width, height);
  }

  /** Places of the chosen, the pinned and the focused client, each with its colour. */
  private rings(data: ChartData): [number, string][] {
    const { client } = this.context.selection;
    const hue = (name: string) => this.context.theme.colour(name);
    const found: [number, string][] = [];
    data.order.forEach((each, i) => {
      if (data.pinned.has(each)) found.push([i, hue("reduce")]);
      if (each === client) found.push([i, hue("bad")]);
    });
    if (document.activeElement === this.canvas && this.cursor >= 0) found.push([this.cursor, hue("accent")]);
    return found;
  }

  private drawBars(pen: CanvasRenderingContext2D, data: ChartData, width: number, height: number): void {
    const { order, value, unit } = data;
    const hue = (name: string) => this.context.theme.colour(name);
    const [low, high] = range(order.map(value));
    const wide = width - EDGE.left - EDGE.right;
    const tall = height - EDGE.top - EDGE.bottom;
    const base = EDGE.top + tall;
    const floor = data.log ? low / 1.5 : 0;
    const share = (each: number) => (high > 0 ? clamp(position(each, floor, high, data.log), 0, 1) : 0);
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    const marks = data.log ? [low, Math.sqrt(low * high), high] : ticks(0, high, 3);
    for (const mark of marks) {
      const y = base - tall * share(mark);
      pen.strokeStyle = hue("line");
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(EDGE.left, y);
      pen.lineTo(width - EDGE.right, y);
      pen.stroke();
      pen.fillStyle = hue("muted");
      pen.fillText(formatAs(unit, mark), EDGE.left - 6, y + 4);
    }
    this.fillBars(pen, data, { wide, tall, base }, share);
    pen.fillStyle = hue("muted");
    pen.textAlign = "left";
    if (data.log) pen.fillText("log scale", EDGE.left + 6, EDGE.top + 2);
    pen.fillText(data.name(order[0]), EDGE.left, height - 5);
    pen.textAlign = "right";
    pen.fillText(data.name(order[order.length - 1]), width - EDGE.right, height - 5);
  }

  /** Bars on whole pixels, so that gaps are equal; where they are narrower than one, the largest of a pixel is drawn. */
  private fillBars(
    pen: CanvasRenderingContext2D,
    data: ChartData,
    box: { wide: number; tall: number; base: number },
    share: (value: number) => number,
  ): void {
    const { order, value } = data;
    const hue = (name: string) => this.context.theme.colour(name);
    const edge = (i: number) => Math.round(EDGE.left + (i * box.wide) / order.length);
    const tops = new Map<number, number>();
    order.forEach((client, i) => {
      const size = box.tall * share(value(client));
      const [x, next] = [edge(i), edge(i + 1)];
      if (!Number.isFinite(size) || size <= (tops.get(x) ?? 0)) return;
      tops.set(x, size);
      const gap = next - x > 4 ? 1 : 0;
      pen.fillStyle = hue("clients");
      pen.fillRect(x, box.base - size, Math.max(next - x - gap, 1), size);
    });
    for (const [i, colour] of this.rings(data)) {
      pen.fillStyle = colour;
      const size = Math.max(3, box.tall * share(value(order[i])));
      pen.fillRect(edge(i), box.base - size, Math.max(edge(i + 1) - edge(i) - 1, 3), size);
    }
  }
}

export const wantsLog = (values: readonly number[]): boolean => suitsLog(values);
