// Draws the part of a run that is in sight. The work depends on pixels, not on the number of spans.

import type { Rgb } from "../lib/theme";
import { type Axis, axisOf, type Camera } from "./camera";
import type { Row, Scene } from "./scene";
import {
  type Bars,
  emptyBars,
  inSight,
  KINDS,
  lowerBound,
  mergePixels,
  NOTHING,
  type Slices,
  type Track,
} from "./spans";
import { Strip } from "./strip";

export interface Marks {
  hover: number;
  chosen: number;
  /** Per track, how many highlighted spans there are before the i-th; null: nothing is highlighted. */
  highlighted: readonly Uint32Array[] | null;
  area: Area | null;
}

export interface Area {
  from: number;
  to: number;
  firstTrack: number;
  lastTrack: number;
}

export interface View {
  camera: Camera;
  /** Pixels of the gutter that holds the devices' names. */
  gutter: number;
  width: number;
  height: number;
  scrollTop: number;
}

export interface Colours {
  kinds: readonly string[];
  series: readonly string[];
  bg: string;
  fg: string;
  muted: string;
  line: string;
  panel: string;
  accent: string;
  bad: string;
}

const RULER = 24; // pixels of the ticks
const CALLS = 14; // and of the names of calls below them
export const AXIS = RULER + CALLS;
const FONT = "11px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const LETTER = 6.3; // pixels of a letter of that font, on average
const LABELLED = 34; // pixels from which a bar holds text
const MOST_ARROWS = 40;
const NARROW = 6; // pixels below which bars are drawn together, as pixels of their row
const ARROWED = 14; // pixels from which a wait has an arrow
const WAIT = KINDS.indexOf("wait");

export function coloursOf(colour: (name: string) => string): Colours {
  const kinds = { compute: "clients", collective: "collective", copy: "broadcast", wait: "muted", other: "server" };
  return {
    kinds: KINDS.map((kind) => colour(kinds[kind])),
    series: [0, 1, 2, 3, 4, 5, 7].map((index) => colour(`series-${index}`)),
    bg: colour("bg"),
    fg: colour("fg"),
    muted: colour("muted"),
    line: colour("line"),
    panel: colour("panel"),
    accent: colour("accent"),
    bad: colour("bad"),
  };
}

/** A colour that stays with a name. */
export function hueOf(text: string, count: number): number {
  let hash = 7;
  for (let i = 0; i < text.length; i++) hash = (hash * 31 + text.charCodeAt(i)) | 0;
  return Math.abs(hash) % count;
}

const shortened = (text: string, width: number): string => {
  const room = Math.floor(width / LETTER);
  return text.length <= room ? text : room < 3 ? "" : `${text.slice(0, room - 1)}…`;
};

type Pen = CanvasRenderingContext2D;

export class Painter {
  private bars: Bars = emptyBars(0);
  private stripes: CanvasPattern | null = null;
  private waits: [width: number, span: number][] = [];
  private readonly hues: number[];
  private readonly kindRgb: Rgb[];
  private readonly seriesRgb: Rgb[];
  private readonly rows = document.createElement("canvas"); // one row of pixels for every row in sight
  private strip = new Strip(0);

  constructor(
    private readonly pen: Pen,
    private readonly scene: Scene,
    private readonly colours: Colours,
  ) {
    this.hues = scene.prefixes.labels.map((label) => hueOf(label, colours.series.length));
    this.stripes = stripes(pen, colours.muted, colours.bg);
    const ground = rgbOf(colours.bg);
    this.kindRgb = colours.kinds.map((colour, kind) => (kind === WAIT ? mixed(rgbOf(colour), ground) : rgbOf(colour)));
    this.seriesRgb = colours.series.map(rgbOf);
  }

  paint(view: View, marks: Marks): void {
    const { pen, colours } = this;
    if (this.bars.x.length < 3 * view.width + 16) this.bars = emptyBars(3 * view.width + 16);
    this.waits = [];
    pen.globalAlpha = 1;
    pen.fillStyle = colours.bg;
    pen.fillRect(0, 0, view.width, view.height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    const axis = axisOf(view.camera, view.width - view.gutter);
    this.grid(view, axis);
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, view.width, view.height - AXIS);
    pen.clip();
    pen.translate(0, AXIS - view.scrollTop);
    const shown = this.scene.rows.filter(
      ({ top, height }) => top + height >= view.scrollTop && top <= view.scrollTop + view.height,
    );
    const wide = Math.max(1, Math.round(view.width - view.gutter));
    if (this.strip.width !== wide) this.strip = new Strip(wide);
    const image = new ImageData(wide, Math.max(1, shown.length));
    shown.forEach((row, at) => {
      if (row.depth < 0) this.spans(row, view, marks);
      else this.slices(row, view);
      this.strip.take(image.data, 4 * wide * at);
    });
    this.together(image, shown, view);
    this.calls(view);
    this.waiting(view, marks);
    this.outline(view, marks.hover, colours.fg, 1.5);
    this.outline(view, marks.chosen, colours.accent, 2.5);
    this.gutter(view);
    if (marks.area) this.area(view, marks.area);
    pen.restore();
    this.head(view, axis);
  }

  private x(view: View, moment: number): number {
    const { from, to } = view.camera;
    return view.gutter + ((moment - from) / (to - from)) * (view.width - view.gutter);
  }

  private grid(view: View, axis: Axis): void {
    this.pen.fillStyle = this.colours.line;
    this.pen.globalAlpha = 0.5;
    for (const { at } of axis.ticks) this.pen.fillRect(Math.round(this.x(view, at)), RULER, 1, view.height);
    this.pen.globalAlpha = 1;
  }

  private head(view: View, axis: Axis): void {
    const { pen, colours } = this;
    pen.fillStyle = colours.panel;
    pen.fillRect(0, 0, view.width, AXIS);
    pen.fillStyle = colours.line;
    pen.fillRect(0, AXIS - 1, view.width, 1);
    pen.fillStyle = colours.muted;
    pen.textAlign = "center";
    for (const { at, text } of axis.ticks) {
      const half = (text.length * LETTER) / 2;
      const x = Math.min(Math.max(this.x(view, at), view.gutter + half), view.width - half - 3);
      pen.fillText(text, x, RULER / 2);
    }
    pen.textAlign = "left";
    this.names(view);
  }

  /** What was collected of narrow bars, each row stretched to its height. */
  private together(image: ImageData, shown: readonly Row[], view: View): void {
    const { pen, rows } = this;
    if (rows.width !== image.width || rows.height < image.height)
      [rows.width, rows.height] = [image.width, image.height];
    rows.getContext("2d")?.putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    shown.forEach(({ top, height }, at) => {
      pen.drawImage(rows, 0, at, image.width, 1, view.gutter, top, image.width, height);
    });
  }

  /** The operations of a track: filled bars, merged where they are narrower than a pixel. */
  private spans(row: Row, view: View, marks: Marks): void {
    const { pen, bars, scene, colours } = this;
    const track = scene.tracks[row.track];
    const wide = view.width - view.gutter;
    mergePixels(track, view.camera.from, view.camera.to, wide, bars);
    this.collectWaits(track);
    const before = marks.highlighted?.[row.track];
    const lit = (i: number) => !before || before[bars.first[i] + bars.spans[i]] > before[bars.first[i]];
    const right = view.width;
    for (let i = 0; i < bars.count; i++)
      if (this.isNarrow(bars, i))
        this.strip.add(bars.x[i], bars.width[i], this.kindRgb[bars.kind[i]], bars.share[i] * (lit(i) ? 1 : 0.18));
    for (let kind = 0; kind < KINDS.length; kind++) {
      pen.fillStyle = kind === WAIT && this.stripes ? this.stripes : colours.kinds[kind];
      for (let i = 0; i < bars.count; i++) {
        if (bars.kind[i] !== kind || this.isNarrow(bars, i)) continue;
        const x = Math.max(view.gutter + bars.x[i], view.gutter);
        const width = Math.min(view.gutter + bars.x[i] + bars.width[i], right) - x;
        pen.globalAlpha = bars.share[i] * (lit(i) ? 1 : 0.18);
        pen.fillRect(x, row.top, width > 4 ? width - 0.6 : width, row.height);
      }
    }
    pen.globalAlpha = 1;
    for (let i = 0; i < bars.count; i++) {
      if (bars.width[i] < LABELLED || bars.spans[i] !== 1 || !lit(i)) continue;
      const x = Math.max(view.gutter + bars.x[i], view.gutter) + 4;
      const room = Math.min(view.gutter + bars.x[i] + bars.width[i], right) - x - 3;
      const span = track.spans[bars.first[i]];
      const wait = bars.kind[i] === WAIT;
      const text = shortened(wait ? `waiting · ${scene.nameOf(span)}` : scene.nameOf(span), room);
      if (wait) {
        pen.fillStyle = colours.bg;
        pen.fillRect(x - 2, row.top + 3, Math.min(text.length * LETTER + 4, room + 2), row.height - 6);
      }
      pen.fillStyle = wait ? colours.fg : colours.bg;
      pen.fillText(text, x, row.top + row.height / 2 + 0.5);
    }
  }

  /** Merged pixels are narrow whatever they add up to: they have no edge and no text of their own. */
  private isNarrow(bars: Bars, i: number): boolean {
    return bars.width[i] < NARROW || bars.spans[i] > 1;
  }

  /** Stages or functions of one depth. */
  private slices(row: Row, view: View): void {
    const slices: Slices = this.scene.slicesAt(row.track, row.depth);
    const { pen, colours, scene } = this;
    const { from, to } = view.camera;
    const scale = (view.width - view.gutter) / (to - from);
    const [first, last] = inSight(slices, from, to);
    const alpha = row.depth === 0 ? 0.38 : 0.2;
    for (let i = first; i < last; ) {
      const left = Math.max((slices.start[i] - from) * scale, 0);
      const right = Math.min((slices.end[i] - from) * scale, view.width - view.gutter);
      const label = slices.label[i];
      const hue = this.hues[label];
      const wide = Math.max(right - left - 0.6, 0.8);
      if (wide < NARROW) this.strip.add(left, wide, this.seriesRgb[hue], alpha);
      else {
        pen.fillStyle = colours.series[hue];
        pen.globalAlpha = alpha;
        pen.fillRect(view.gutter + left, row.top, wide, row.height);
      }
      if (right - left > LABELLED) {
        pen.globalAlpha = 1;
        pen.fillStyle = colours.fg;
        pen.fillText(
          shortened(scene.prefixes.labels[label], right - left - 7),
          view.gutter + left + 4,
          row.top + row.height / 2 + 0.5,
        );
      }
      i++;
      if (right - left < 1 && i < last) i = lowerBound(slices.end, from + (left + 1) / scale, i, last);
    }
    pen.globalAlpha = 1;
  }

  /** Rules where calls of the program begin. */
  private calls(view: View): void {
    const { pen, colours, scene } = this;
    pen.fillStyle = colours.fg;
    scene.data.rounds.forEach((moment) => {
      const x = Math.round(this.x(view, moment));
      if (x < view.gutter || x > view.width) return;
      pen.globalAlpha = 0.55;
      pen.fillRect(x, view.scrollTop, 1, view.height);
    });
    pen.globalAlpha = 1;
  }

  /** The names of the calls, in a band of their own. */
  private names(view: View): void {
    const { pen, colours, scene } = this;
    scene.data.rounds.forEach((moment, call) => {
      const left = Math.max(this.x(view, moment), view.gutter);
      const right = Math.min(this.x(view, scene.data.rounds[call + 1] ?? scene.end), view.width);
      if (right < view.gutter || left > view.width) return;
      pen.fillStyle = colours.fg;
      if (this.x(view, moment) >= view.gutter) pen.fillRect(Math.round(left), RULER, 1, CALLS);
      pen.fillText(shortened(`call ${call + 1}`, right - left - 8), left + 5, RULER + CALLS / 2);
    });
  }

  /** From the longest waits in sight, and from the chosen one, to the device that was waited for. */
  private waiting(view: View, marks: Marks): void {
    for (const span of this.longestWaits()) this.arrow(view, span, 0.32, 1);
    for (const span of new Set([marks.hover, marks.chosen])) if (span >= 0) this.arrow(view, span, 1, 2);
  }

  /** Of the bars just merged, those of single waits that are wide enough for an arrow. */
  private collectWaits(track: Track): void {
    const { bars } = this;
    for (let i = 0; i < bars.count; i++)
      if (bars.kind[i] === WAIT && bars.spans[i] === 1 && bars.width[i] > ARROWED)
        this.waits.push([bars.width[i], track.spans[bars.first[i]]]);
  }

  private longestWaits(): number[] {
    return this.waits
      .sort((a, b) => b[0] - a[0])
      .slice(0, MOST_ARROWS)
      .map(([, span]) => span);
  }

  private arrow(view: View, span: number, strength: number, thick: number): void {
    const { scene, pen, colours } = this;
    const other = scene.columns.awaited[span];
    if (other === NOTHING || other === undefined) return;
    const [mine, late] = [scene.find(span), scene.find(other)];
    const from = mine && scene.operationRow(mine.track);
    const to = late && scene.operationRow(late.track);
    if (!from || !to) return;
    const x1 = this.x(view, scene.columns.start[span] + scene.columns.seconds[span]);
    const x2 = this.x(view, scene.columns.start[other]);
    const [y1, y2] = [from.top + from.height / 2, to.top + to.height / 2];
    pen.globalAlpha = strength;
    pen.strokeStyle = colours.bad;
    pen.fillStyle = colours.bad;
    pen.lineWidth = thick;
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.bezierCurveTo(x1 + 10, y1, x2 - 14, y2, x2, y2);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x2 + 1, y2);
    pen.lineTo(x2 - 6, y2 - 3.5);
    pen.lineTo(x2 - 6, y2 + 3.5);
    pen.fill();
    pen.globalAlpha = 1;
  }

  private outline(view: View, span: number, colour: string, thick: number): void {
    if (span < 0) return;
    const place = this.scene.find(span);
    const row = place && this.scene.operationRow(place.track);
    if (!row) return;
    const x = this.x(view, this.scene.columns.start[span]);
    const wide = Math.max(this.x(view, this.scene.columns.start[span] + this.scene.columns.seconds[span]) - x, 2);
    this.pen.strokeStyle = colour;
    this.pen.lineWidth = thick;
    this.pen.strokeRect(x - 0.5, row.top - 1, wide + 1, row.height + 2);
  }

  private gutter(view: View): void {
    const { pen, colours, scene } = this;
    pen.fillStyle = colours.panel;
    pen.fillRect(0, view.scrollTop, view.gutter - 4, view.height);
    pen.fillStyle = colours.bg;
    pen.fillRect(view.gutter - 4, view.scrollTop, 4, view.height);
    let last = -1;
    for (const row of scene.rows) {
      if (row.top + row.height < view.scrollTop || row.top > view.scrollTop + view.height) continue;
      if (row.depth >= 0) continue;
      const { device } = scene.tracks[row.track];
      pen.fillStyle = device === last ? colours.muted : colours.fg;
      pen.fillText(shortened(scene.labelOf(row.track), view.gutter - 12), 8, row.top + row.height / 2 + 0.5);
      last = device;
    }
  }

  private area(view: View, area: Area): void {
    const { pen, colours, scene } = this;
    const rows = scene.rows.filter(({ track }) => track >= area.firstTrack && track <= area.lastTrack);
    if (!rows.length) return;
    const x = this.x(view, area.from);
    const wide = this.x(view, area.to) - x;
    const top = rows[0].top - 2;
    const high = rows[rows.length - 1].top + rows[rows.length - 1].height + 2 - top;
    pen.fillStyle = colours.accent;
    pen.globalAlpha = 0.14;
    pen.fillRect(x, top, wide, high);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(x, top, wide, high);
  }
}

/** A colour as the canvas itself understands it, whatever way it is written. */
function rgbOf(colour: string): Rgb {
  const dot = document.createElement("canvas");
  dot.width = dot.height = 1;
  const pen = dot.getContext("2d");
  if (!pen) return [128, 128, 128];
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
  return [r, g, b];
}

/** The colour of stripes from afar. */
const mixed = (line: Rgb, ground: Rgb): Rgb => [0, 1, 2].map((i) => (line[i] + ground[i]) / 2) as unknown as Rgb;

/** Thin diagonal lines: waiting is told from work without colour. */
function stripes(pen: Pen, line: string, ground: string): CanvasPattern | null {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const small = tile.getContext("2d");
  if (!small) return null;
  small.fillStyle = ground;
  small.fillRect(0, 0, 6, 6);
  small.strokeStyle = line;
  small.lineWidth = 1.3;
  for (const shift of [-6, 0, 6]) {
    small.beginPath();
    small.moveTo(shift, 6);
    small.lineTo(shift + 6, 0);
    small.stroke();
  }
  return pen.createPattern(tile, "repeat");
}
