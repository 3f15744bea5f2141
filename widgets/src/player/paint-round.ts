// Draws one moment of a round: the server above, its clients below, what travels between them.

import { formatBytes, formatCount } from "../lib/format";
import type { PlayedCourse, PlayedRound, PlayedStage, PlayedValue } from "../lib/states";
import { ease, type Frame, frameAt, gridOf, mainCourse, movesOf } from "./frames";

export interface Ink {
  bg: string;
  panel: string;
  fg: string;
  muted: string;
  line: string;
  server: string;
  broadcast: string;
  clients: string;
  reduce: string;
  accent: string;
}

export interface Stage {
  width: number;
  height: number;
}

interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const MARGIN = 14;
const SERVER = 92; // pixels of height
const ROAD = 92; // pixels between the server and its clients
const GAP = 6;
const TOKEN = 18;

type Pen = CanvasRenderingContext2D;

/** Where clients stand; `clients` are the numbers of those that are drawn. */
export function placesOf(count: number, { width, height }: Stage): Box[] {
  const top = MARGIN + SERVER + ROAD;
  const area = { width: width - 2 * MARGIN, height: height - top - MARGIN };
  const { columns, rows } = gridOf(count, area.width, area.height * 1.7);
  const cell = { width: Math.min(area.width / columns, 150), height: Math.min(area.height / rows, 118) };
  const left = (width - columns * cell.width) / 2;
  return Array.from({ length: count }, (_, i) => ({
    x: left + (i % columns) * cell.width + GAP / 2,
    y: top + Math.floor(i / columns) * cell.height + GAP / 2,
    width: cell.width - GAP,
    height: cell.height - GAP,
  }));
}

/** The pictured values of one client; of what all share, the only ones. */
function pictureOf(value: PlayedValue | undefined, row: number): readonly number[] {
  if (!value) return [];
  const size = value.picture_shape[0] * value.picture_shape[1];
  const rows = size ? value.picture.length / size : 0;
  return rows ? value.picture.slice((row % rows) * size, ((row % rows) + 1) * size) : [];
}

const most = (values: readonly number[]): number => values.reduce((high, value) => Math.max(high, Math.abs(value)), 0);

export class RoundPainter {
  private readonly places: Box[];
  private readonly server: Box;
  private readonly course: PlayedCourse | undefined;
  private readonly trained: number;

  constructor(
    private readonly pen: Pen,
    private readonly played: PlayedRound,
    private readonly frames: readonly Frame[],
    private readonly ink: Ink,
    private readonly size: Stage,
  ) {
    this.places = placesOf(played.pictured.length, size);
    const width = Math.min(330, size.width - 2 * MARGIN);
    this.server = { x: (size.width - width) / 2, y: MARGIN, width, height: SERVER };
    this.course = mainCourse(played.courses);
    this.trained = frames.find(({ kind, steps }) => kind === "local" && steps > 1)?.stage ?? -1;
  }

  /** The client under a place of the picture; -1 where there is none. */
  clientAt(x: number, y: number): number {
    const hit = this.places.findIndex(
      (box) => x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height,
    );
    return hit < 0 ? -1 : this.played.pictured[hit];
  }

  paint(moment: number, chosen: number | undefined): void {
    const { pen, ink, size } = this;
    const { index, passed } = frameAt(moment, this.frames.length);
    const frame = this.frames[index];
    pen.globalAlpha = 1;
    pen.fillStyle = ink.bg;
    pen.fillRect(0, 0, size.width, size.height);
    pen.textBaseline = "middle";
    if (frame.kind === "down" || frame.kind === "up") this.roads(frame);
    this.drawServer(index, frame);
    this.places.forEach((box, place) => this.drawClient(box, place, index, passed, chosen));
    if (frame.kind === "down" || frame.kind === "up") this.travel(frame, ease(passed));
  }

  private stage(frame: Frame): PlayedStage {
    return this.played.stages[frame.stage];
  }

  private text(
    text: string,
    x: number,
    y: number,
    size: number,
    colour: string,
    align: CanvasTextAlign = "left",
    weight = 400,
  ): void {
    this.pen.font = `${weight} ${size}px ${FONT}`;
    this.pen.fillStyle = colour;
    this.pen.textAlign = align;
    this.pen.fillText(text, x, y);
  }

  private panel(box: Box, fill: string, stroke: string, thick: number): void {
    this.pen.beginPath();
    this.pen.roundRect(box.x, box.y, box.width, box.height, 7);
    this.pen.fillStyle = fill;
    this.pen.fill();
    this.pen.strokeStyle = stroke;
    this.pen.lineWidth = thick;
    this.pen.stroke();
  }

  /** What the server holds at a frame: the last value that it made or sent. */
  private held(index: number): PlayedStage | undefined {
    for (let i = index; i >= 0; i--) {
      const { kind } = this.frames[i];
      if (kind === "down" || kind === "result" || kind === "server") return this.stage(this.frames[i]);
    }
    return this.played.stages.find(({ kind }) => kind === "broadcast");
  }

  private drawServer(index: number, frame: Frame): void {
    const { server, ink } = this;
    const busy = frame.kind === "server" || frame.kind === "result";
    this.panel(server, ink.panel, busy ? ink.reduce : ink.server, busy ? 2.5 : 1.2);
    const stage = this.held(index);
    const value = stage?.values[0];
    const side = SERVER - 30;
    this.picture(pictureOf(value, 0), value, { x: server.x + 12, y: server.y + 22, width: side, height: side });
    const left = server.x + side + 26;
    this.text("server", server.x + 12, server.y + 12, 12, ink.muted, "left", 600);
    if (!stage) return;
    const name = stage.kind === "broadcast" ? "has the parameters" : stage.kind === "server" ? "computes" : stage.name;
    this.text(name, left, server.y + 34, 14, ink.fg, "left", 600);
    if (!value) return;
    const bytes = stage.values.reduce((sum, each) => sum + each.size_bytes, 0);
    this.text(
      `${value.dtype}[${value.shape.join(", ")}]${stage.values.length > 1 ? ` and ${stage.values.length - 1} more` : ""}`,
      left,
      server.y + 54,
      12,
      ink.muted,
    );
    this.text(`${formatBytes(bytes)} · size ${formatCount(value.norms[0])}`, left, server.y + 72, 12, ink.muted);
  }

  private drawClient(box: Box, place: number, index: number, passed: number, chosen: number | undefined): void {
    const { ink } = this;
    const client = this.played.pictured[place];
    const frame = this.frames[index];
    const working = frame.kind === "local";
    this.panel(
      box,
      ink.panel,
      client === chosen ? ink.accent : working ? ink.clients : ink.line,
      client === chosen ? 3 : working ? 1.6 : 1,
    );
    const roomy = box.width > 54 && box.height > 52;
    const made = this.clientValue(index);
    const side = roomy ? Math.min(box.height - 28, box.width * 0.42, 46) : Math.min(box.width, box.height) - 6;
    const picture = { x: box.x + (roomy ? 7 : 3), y: box.y + (roomy ? 21 : 3), width: side, height: side };
    if (made) this.picture(this.difference(made.value, place, made.from), made.value, picture);
    if (!roomy) return;
    this.text(`client ${client}`, box.x + 7, box.y + 11, 11, ink.fg, "left", 600);
    const right = { x: picture.x + side + 8, y: picture.y, width: box.width - side - 22, height: side };
    const step = this.stepsDone(index, passed);
    if (this.course && step > 0 && right.width > 18) this.curve(this.course.values[client] ?? [], step, right);
    const number = made?.moves[client];
    if (number !== undefined && box.height > 76)
      this.text(
        `${made?.from ? "moved" : "size"} ${formatCount(number)}`,
        box.x + 7,
        box.y + box.height - 9,
        11,
        ink.muted,
      );
  }

  /** What clients hold: what they were sent, then what they made of it. */
  private clientValue(index: number): { value: PlayedValue; moves: readonly number[]; from: boolean } | undefined {
    for (let i = index; i >= 0; i--) {
      const { kind, step, steps } = this.frames[i];
      const value = this.stage(this.frames[i]).values[0];
      if (kind === "local" && step === steps && value?.shape.length) return { value, ...movesOf(value) };
      if (kind === "down" && value && i < index) return { value, moves: [], from: false };
    }
    return undefined;
  }

  /** A new model is shown as what changed in it: what it received is alike at all clients. */
  private difference(value: PlayedValue, place: number, from: boolean): readonly number[] {
    const own = pictureOf(value, place);
    if (!from) return own;
    const sent = this.played.stages
      .find(({ kind }) => kind === "broadcast")
      ?.values.find(({ shape }) => String(shape) === String(value.shape));
    const base = pictureOf(sent, 0);
    return base.length === own.length ? own.map((each, i) => each - base[i]) : own;
  }

  private stepsDone(index: number, passed: number): number {
    const frame = this.frames[index];
    if (frame.stage > this.trained)
      return frame.stage > this.trained && this.trained >= 0 ? Number.POSITIVE_INFINITY : 0;
    if (frame.stage < this.trained) return 0;
    const before = this.frames[index - 1];
    const begun = before?.stage === frame.stage ? before.step : 0;
    return begun + (frame.step - begun) * passed;
  }

  /** A client's loss so far, on the scale of all clients. */
  private curve(row: readonly (number | null)[], steps: number, box: Box): void {
    const { pen, ink } = this;
    const all = (this.course as PlayedCourse).values.flat().filter((value): value is number => value !== null);
    const high = Math.max(...all);
    const low = Math.min(...all);
    const x = (i: number) => box.x + (box.width * i) / Math.max(row.length - 1, 1);
    const y = (value: number) => box.y + box.height - ((value - low) / (high - low || 1)) * box.height;
    pen.strokeStyle = ink.line;
    pen.lineWidth = 1;
    pen.strokeRect(box.x - 2, box.y - 2, box.width + 4, box.height + 4);
    pen.strokeStyle = ink.clients;
    pen.lineWidth = 1.8;
    pen.beginPath();
    let down = false;
    for (let i = 0; i < row.length && i < Math.max(1, Math.ceil(steps)); i++) {
      const value = row[i];
      if (value === null) down = false;
      else if (down) pen.lineTo(x(i), y(value));
      else {
        pen.moveTo(x(i), y(value));
        down = true;
      }
    }
    pen.stroke();
  }

  /** Numbers as colours: below zero one hue, above zero another. */
  private picture(numbers: readonly number[], value: PlayedValue | undefined, box: Box): void {
    const { pen, ink } = this;
    if (!value || !numbers.length) return;
    const [rows, columns] = value.picture_shape;
    const top = most(numbers) || 1;
    const side = { width: box.width / columns, height: Math.min(box.height / rows, box.width / columns) };
    numbers.forEach((number, i) => {
      pen.fillStyle = number < 0 ? ink.broadcast : ink.reduce;
      pen.globalAlpha = 0.08 + 0.92 * Math.min(1, Math.abs(number) / top);
      pen.fillRect(
        box.x + (i % columns) * side.width,
        box.y + Math.floor(i / columns) * side.height,
        side.width - 0.5,
        side.height - 0.5,
      );
    });
    pen.globalAlpha = 1;
  }

  private ends(place: number): [number, number, number, number] {
    const { server } = this;
    const box = this.places[place];
    return [server.x + server.width / 2, server.y + server.height + 4, box.x + box.width / 2, box.y - 2];
  }

  private roads(frame: Frame): void {
    const { pen, ink } = this;
    pen.strokeStyle = frame.kind === "down" ? ink.broadcast : ink.reduce;
    pen.globalAlpha = 0.22;
    pen.lineWidth = 1;
    this.places.forEach((_, place) => {
      const [x1, y1, x2, y2] = this.ends(place);
      pen.beginPath();
      pen.moveTo(x1, y1);
      pen.bezierCurveTo(x1, y1 + 50, x2, y2 - 50, x2, y2);
      pen.stroke();
    });
    pen.globalAlpha = 1;
  }

  private travel(frame: Frame, share: number): void {
    const { ink } = this;
    const stage = this.stage(frame);
    const down = frame.kind === "down";
    const carried = down ? stage.values[0] : this.clientValue(this.frames.indexOf(frame))?.value;
    const from = !down && (this.clientValue(this.frames.indexOf(frame))?.from ?? false);
    this.places.forEach((_, place) => {
      const [x1, y1, x2, y2] = this.ends(place);
      const t = down ? share : 1 - share;
      const bend = (a: number, b: number, c: number, d: number) =>
        (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t ** 2 * c + t ** 3 * d;
      const x = bend(x1, x1, x2, x2);
      const y = bend(y1, y1 + 50, y2 - 50, y2);
      const token = { x: x - TOKEN / 2, y: y - TOKEN / 2, width: TOKEN, height: TOKEN };
      this.panel(
        { x: token.x - 2, y: token.y - 2, width: TOKEN + 4, height: TOKEN + 4 },
        ink.bg,
        down ? ink.broadcast : ink.reduce,
        1.4,
      );
      this.picture(down ? pictureOf(carried, 0) : carried ? this.difference(carried, place, from) : [], carried, token);
    });
    const each = formatBytes(stage.moved_bytes / Math.max(stage.clients, 1));
    const label = `${formatCount(stage.clients)} × ${each} = ${formatBytes(stage.moved_bytes)}`;
    const y = this.server.y + this.server.height + ROAD / 2;
    this.pen.font = `600 13px ${FONT}`;
    const wide = this.pen.measureText(label).width;
    const x = Math.min(this.size.width / 2 + 60, this.size.width - wide - 16);
    this.panel({ x: x - 8, y: y - 12, width: wide + 16, height: 24 }, ink.bg, ink.line, 1);
    this.text(label, x, y + 0.5, 13, ink.fg, "left", 600);
  }
}
