// The roofline as a picture: roofs of a chip, and a dot for each operation or line, as large as its time.

import { s } from "./dom";
import { formatCount, formatFlops } from "./format";
import { rove } from "./keyboard";
import { axesFor, type Dot, type Frame, powersOfTen, roofPoints } from "./roofline";
import type { ChipRoofs } from "./states";

const LABEL = { gap: 8, line: 13, above: 3, room: 90 }; // pixels

export interface RooflineOptions {
  dots: readonly Dot[];
  chip: ChipRoofs | null;
  frame: Frame;
  /** "measured operations" */
  what: string;
  /** What a dot says, to the eye and to the ear. */
  spoken: (dot: Dot) => string;
  choose: (dot: Dot) => void;
}

export function rooflinePicture({ dots, chip, frame, what, spoken, choose }: RooflineOptions): SVGSVGElement {
  const axes = axesFor(dots, chip, frame);
  const { width, height, left, bottom } = frame;
  const floor = height - bottom;
  const grid = [
    ...powersOfTen(axes.low[0], axes.high[0]).map((value) => {
      const x = axes.x(value);
      const anchor = x > width - 40 ? "end" : "middle"; // else the picture's edge cuts it
      return [
        s("line", { x1: x, x2: x, y1: 12, y2: floor, class: "wb-grid" }),
        s("text", { x: anchor === "end" ? width - 2 : x, y: floor + 16, "text-anchor": anchor }, formatCount(value)),
      ];
    }),
    ...powersOfTen(axes.low[1], axes.high[1]).map((value) => {
      const y = axes.y(value);
      return [
        s("line", { x1: left, x2: width - 10, y1: y, y2: y, class: "wb-grid" }),
        s("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, `${formatFlops(value)}/s`),
      ];
    }),
  ];
  const groups = chip ? roofGroups(chip.peaks) : [];
  const lines = groups.map(([, peak]) => roofPoints(chip?.bandwidth ?? 1, peak, axes));
  const labels = roofLabels(
    lines.map((points) => points[1]),
    left,
  );
  const roofs = groups.map(([dtype], i) => roofOf(lines[i], dtype, labels[i]));
  const longest = Math.max(...dots.map(({ seconds }) => seconds));
  const marks = dots.map((dot) => {
    const words = spoken(dot);
    const r = 3 + 9 * Math.sqrt(dot.seconds / longest);
    return s("circle", {
      cx: axes.x(dot.intensity),
      cy: axes.y(dot.rate),
      r,
      role: "button",
      "data-dot": dot.index,
      "aria-label": words,
      "data-tip": words,
      tabindex: -1,
    });
  });
  const svg = s(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      class: "wb-roofline",
      role: "group",
      "aria-label": `Roofline, ${dots.length} ${what}`,
    },
    grid.flat(),
    roofs,
    s("text", { x: width - 10, y: height - 4, "text-anchor": "end" }, "matrix FLOPs per byte of memory traffic"),
    marks,
  );
  const pick = (mark: SVGElement) => {
    const dot = dots.find(({ index }) => index === Number(mark.dataset.dot));
    if (dot) choose(dot);
  };
  svg.addEventListener("click", (event) => {
    const mark = (event.target as Element).closest<SVGElement>("[data-dot]");
    if (mark) pick(mark);
  });
  rove<SVGElement>(svg, { items: () => marks, choose: pick });
  return svg;
}

/** Roofs of the same height are one line with all their names. */
export function roofGroups(peaks: Readonly<Record<string, number>>): [string, number][] {
  const found = new Map<number, string[]>();
  for (const [dtype, peak] of Object.entries(peaks)) found.set(peak, [...(found.get(peak) ?? []), dtype]);
  return [...found].map(([peak, names]) => [names.join(", "), peak]);
}

/** Where the names of roofs stand: left of the first ridge, above the slope, one below the other, as no line crosses them there. */
export function roofLabels(
  ridges: readonly (readonly [number, number])[],
  left: number,
): { x: number; y: number; anchor: "start" | "end" }[] {
  const first = Math.min(...ridges.map(([x]) => x)) - LABEL.gap;
  const outside = first - left < LABEL.room; // no place before the ridge
  let below = Number.NEGATIVE_INFINITY;
  const heights = new Map<number, number>();
  const order = ridges.map(([, y], i) => [y, i] as const).sort(([a], [b]) => a - b);
  for (const [y, i] of order) {
    below = Math.max(y - LABEL.above, below + LABEL.line);
    heights.set(i, below);
  }
  return ridges.map(([x], i) => {
    const y = heights.get(i) ?? 0;
    return outside ? { x: x + LABEL.gap, y: y + LABEL.line, anchor: "start" } : { x: first, y, anchor: "end" };
  });
}

function roofOf(
  points: readonly (readonly [number, number])[],
  dtype: string,
  { x, y, anchor }: ReturnType<typeof roofLabels>[number],
): SVGGElement {
  return s(
    "g",
    { class: "wb-roof" },
    s("polyline", { points: points.map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" ") }),
    s("text", { x, y, "text-anchor": anchor }, dtype),
  );
}
