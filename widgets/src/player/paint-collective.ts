// Draws one moment of a collective: devices in a circle, what each holds, messages on their way, bytes per link.
import { formatBytes } from "../lib/format";
import { bytesPerLink, holdingsAfter, type Steps } from "./collectives";
import { ease, frameAt } from "./frames";
import type { Ink, Stage } from "./paint-round";

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const CARD = { width: 118, height: 60 };
const MARGIN = 46;

export interface Collective {
  kind: string;
  devices: readonly string[];
  steps: Steps;
}

export interface Layout {
  /** The middle of each device's card. */
  places: [number, number][];
  cardWidth: number;
  /** Whether they are in two rows. */
  rows: boolean;
}

function overlap(places: readonly [number, number][]): boolean {
  return places.some(([x, y], i) => {
    const [nextX, nextY] = places[(i + 1) % places.length];
    return i < places.length - 1 && Math.abs(nextX - x) < CARD.width + 8 && Math.abs(nextY - y) < CARD.height + 8;
  });
}

/** Devices around an ellipse, the first at the top; on a stage too low for that, in two rows, clockwise. */
export function layout(count: number, { width, height }: Stage): Layout {
  const [rx, ry] = [width / 2 - CARD.width / 2 - MARGIN, height / 2 - CARD.height / 2 - MARGIN / 2];
  const round = Array.from({ length: count }, (_, i): [number, number] => {
    const angle = (2 * Math.PI * i) / count - Math.PI / 2;
    return [width / 2 + rx * Math.cos(angle), height / 2 + ry * Math.sin(angle)];
  });
  if (!overlap(round)) return { places: round, cardWidth: CARD.width, rows: false };
  const columns = Math.ceil(count / 2);
  const apart = width / columns;
  const away = Math.max(ry, height / 2 - CARD.height / 2 - 8);
  const rows = Array.from({ length: count }, (_, i): [number, number] => {
    const column = i < columns ? i : count - 1 - i;
    return [(column + 0.5) * apart, height / 2 + (i < columns ? -away : away)];
  });
  return { places: rows, cardWidth: Math.min(CARD.width, apart - 12), rows: true };
}

interface Point {
  x: number;
  y: number;
}

/** Where no card covers the label of a link: where it is wanted if it can be; null where there is no such place. */
export function labelPlace(
  half: number,
  cards: { places: readonly (readonly [number, number])[]; cardWidth: number; width: number },
  [from, to]: readonly [readonly [number, number], readonly [number, number]],
  wanted: Point,
): Point | null {
  const covered = ({ x, y }: Point) =>
    x - half < 0 ||
    x + half > cards.width ||
    cards.places.some(
      ([cx, cy]) => Math.abs(x - cx) < half + cards.cardWidth / 2 && Math.abs(y - cy) < 8 + CARD.height / 2,
    );
  const along = [0.58, 0.5, 0.66, 0.42].map((t) => ({
    x: (1 - t) * from[0] + t * to[0],
    y: (1 - t) * from[1] + t * to[1],
  }));
  return [wanted, ...along].find((place) => !covered(place)) ?? null;
}

export class CollectivePainter {
  private readonly places: [number, number][];
  private readonly cardWidth: number;
  private readonly rows: boolean;

  constructor(
    private readonly pen: CanvasRenderingContext2D,
    private readonly collective: Collective,
    private readonly ink: Ink,
    private readonly size: Stage,
  ) {
    const { places, cardWidth, rows } = layout(collective.devices.length, size);
    this.places = places;
    this.cardWidth = cardWidth;
    this.rows = rows;
  }

  paint(moment: number): void {
    const { pen, ink, size, collective } = this;
    const count = collective.steps.length;
    const { index, passed } = frameAt(moment, count);
    const share = ease(passed);
    pen.globalAlpha = 1;
    pen.fillStyle = ink.bg;
    pen.fillRect(0, 0, size.width, size.height);
    pen.textBaseline = "middle";
    this.links(index + (share >= 1 ? 1 : 0));
    const held = holdingsAfter(collective.kind, this.places.length, collective.steps, index + (share >= 1 ? 1 : 0));
    this.places.forEach((place, device) => this.device(place, device, held[device]));
    if (share < 1) this.messages(index, share);
  }

  private text(
    text: string,
    x: number,
    y: number,
    size: number,
    colour: string,
    align: CanvasTextAlign,
    weight = 400,
  ): void {
    this.pen.font = `${weight} ${size}px ${FONT}`;
    this.pen.fillStyle = colour;
    this.pen.textAlign = align;
    this.pen.fillText(text, x, y);
  }

  private links(done: number): void {
    const { pen, ink, collective } = this;
    const all = bytesPerLink(collective.steps, collective.steps.length);
    const now = bytesPerLink(collective.steps, done);
    const top = Math.max(...all.values(), 1);
    const between = Math.abs(this.places[0][1] - this.places[this.places.length - 1][1]) - CARD.height;
    const few = all.size <= 2 * this.places.length && !(this.rows && between < 56); // else the labels hide one another
    for (const [link, whole] of all) {
      const [from, to] = link.split(">").map((each) => this.places[Number(each)]);
      const sent = now.get(link) ?? 0;
      pen.strokeStyle = sent ? ink.reduce : ink.line;
      pen.globalAlpha = sent ? 0.65 : 0.6;
      pen.lineWidth = 1 + (5 * sent) / top;
      pen.beginPath();
      pen.moveTo(from[0], from[1]);
      pen.lineTo(to[0], to[1]);
      pen.stroke();
      pen.globalAlpha = 1;
      if (!few) continue;
      const [x, y] = [0.42 * from[0] + 0.58 * to[0], 0.42 * from[1] + 0.58 * to[1]];
      const middle = this.size.height / 2;
      const inRow = this.rows && from[1] === to[1]; // the gap between two cards is too narrow for it
      const inner = inRow
        ? { x: (from[0] + to[0]) / 2, y: y + Math.sign(middle - y) * (CARD.height / 2 + 10) }
        : { x: x + (this.size.width / 2 - x) * 0.16, y: y + (middle - y) * 0.16 };
      const label = `${formatBytes(sent)} of ${formatBytes(whole)}`;
      const free = inRow ? inner : this.beside(label, from, to, inner);
      if (!free) continue;
      this.text(label, free.x, free.y, 11, sent ? ink.fg : ink.muted, "center", sent ? 600 : 400);
    }
  }

  private beside(label: string, from: [number, number], to: [number, number], wanted: Point): Point | null {
    this.pen.font = `600 11px ${FONT}`;
    const half = this.pen.measureText(label).width / 2 + 2;
    const cards = { places: this.places, cardWidth: this.cardWidth, width: this.size.width };
    const inwards = Math.sign(this.size.width / 2 - from[0]) * (half + 5);
    const upright = this.rows && from[0] === to[0]; // its label stands next to it, not on it
    return labelPlace(half, cards, [from, to], upright ? { x: from[0] + inwards, y: wanted.y } : wanted);
  }

  private device([x, y]: [number, number], device: number, chunks: readonly ReadonlySet<number>[]): void {
    const { pen, ink, collective } = this;
    const left = x - this.cardWidth / 2;
    const top = y - CARD.height / 2;
    pen.beginPath();
    pen.roundRect(left, top, this.cardWidth, CARD.height, 7);
    pen.fillStyle = ink.panel;
    pen.fill();
    pen.strokeStyle = ink.line;
    pen.lineWidth = 1.2;
    pen.stroke();
    this.text(collective.devices[device], left + 8, top + 13, 12, ink.fg, "left", 600);
    const wide = (this.cardWidth - 16) / chunks.length;
    const sums = collective.kind === "all-reduce" || collective.kind === "reduce-scatter";
    const complete = sums ? this.places.length : 1;
    chunks.forEach((sources, chunk) => {
      const share = Math.min(1, sources.size / complete);
      const box = {
        x: left + 8 + chunk * wide,
        y: top + 24,
        width: wide - (wide > 4 ? 1.5 : 0),
        height: CARD.height - 33,
      };
      pen.fillStyle = ink.bg;
      pen.fillRect(box.x, box.y, box.width, box.height);
      pen.fillStyle = share >= 1 ? ink.clients : ink.broadcast;
      pen.globalAlpha = 0.85;
      pen.fillRect(box.x, box.y + box.height * (1 - share), box.width, box.height * share);
      pen.globalAlpha = 1;
    });
  }

  private messages(index: number, share: number): void {
    const { ink, pen } = this;
    for (const { from, to, bytes } of this.collective.steps[index]) {
      const [a, b] = [this.places[from], this.places[to]];
      const x = a[0] + (b[0] - a[0]) * share;
      const y = a[1] + (b[1] - a[1]) * share;
      const text = formatBytes(bytes);
      pen.font = `600 11px ${FONT}`;
      const wide = pen.measureText(text).width + 12;
      pen.beginPath();
      pen.roundRect(x - wide / 2, y - 10, wide, 20, 10);
      pen.fillStyle = ink.reduce;
      pen.fill();
      this.text(text, x, y + 0.5, 11, ink.bg, "center", 600);
    }
  }
}
