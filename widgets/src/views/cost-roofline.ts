// The roofline of a program's lines: what limits each, how far it stays below the roof, and where its time goes.

import { h } from "../lib/dom";
import { formatBandwidth, formatFlops, formatSeconds, plural } from "../lib/format";
import { type Dot, shareOfRoof } from "../lib/roofline";
import { type RooflineOptions, rooflinePicture } from "../lib/roofline-picture";
import type { ChipRoofs, LinesRoofline, StageCost } from "../lib/states";
import type { ViewContext } from "../lib/view";

const FRAME = { width: 400, height: 240, left: 82, bottom: 34 };

/** The dots in the order of the lines. */
export const lineDots = ({ dots }: Pick<LinesRoofline, "dots">): Dot[] =>
  dots.map(({ flops, bytes, seconds }, index) => ({ index, intensity: flops / bytes, rate: flops / seconds, seconds }));

/** What a line of the program says of itself. */
export function spokenLine(lines: LinesRoofline, dot: Dot): string {
  const { chip, dots } = lines;
  const { place, dtype } = dots[dot.index];
  const peak = chip.peaks[dtype] ?? Math.max(...Object.values(chip.peaks));
  const bound = dot.intensity < peak / chip.bandwidth ? "memory" : "compute";
  const share = (100 * shareOfRoof(dot, chip, peak)).toFixed(0);
  return (
    `${place}: ${formatSeconds(dot.seconds)} predicted, bound by ${bound}; ${dot.intensity.toPrecision(3)} matrix FLOPs per ` +
    `byte, ${formatFlops(dot.rate)}/s in ${dtype}, ${share} % of the roof`
  );
}

export function lineRoofline(context: ViewContext<"cost">, lines: LinesRoofline): HTMLElement {
  const { chip, assumed, without_products: without } = lines;
  const dots = lineDots(lines);
  const svg = selectable(context, {
    dots,
    chip,
    what: "lines of the program",
    spoken: (dot) => spokenLine(lines, dot),
    choose: ({ index }) => {
      const { line, instruction } = lines.dots[index];
      context.select({ line, instruction, node: null });
    },
    isChosen: ({ line, instruction }, index) => {
      const shown = lines.dots[index];
      return instruction ? shown.instruction === instruction : Boolean(line) && shown.line === line;
    },
  });
  const which = assumed
    ? ` ${chip.name} is assumed: the program does not name a chip. Pass on="h100" or another chip.`
    : "";
  const rest = without[0]
    ? ` ${plural(without[0], "line")} without matrix products (${(100 * without[1]).toFixed(0)} % of the time) cannot be drawn.`
    : "";
  const text =
    `${chip.name}, ${formatBandwidth(chip.bandwidth)}.${which} ${plural(dots.length, "line")} of one device; the area of a dot is ` +
    `its predicted time.${rest}`;
  return h("div", {}, svg, h("p", { class: "wb-note" }, text));
}

/** Stages with matrix products, for a program that was not compiled. */
export function stageDots(stages: readonly StageCost[]): Dot[] {
  return stages.flatMap(({ flops, accessed, compute, memory }, index) => {
    const seconds = compute === null || memory === null ? 0 : Math.max(compute, memory);
    return flops && accessed && seconds ? [{ index, intensity: flops / accessed, rate: flops / seconds, seconds }] : [];
  });
}

export function stageRoofline(
  context: ViewContext<"cost">,
  chip: ChipRoofs,
  stages: readonly StageCost[],
): HTMLElement {
  const dots = stageDots(stages);
  const without = stages.some(({ flops }) => flops !== 0)
    ? "No stage can be drawn: its matrix FLOPs, memory traffic or time is unknown."
    : "No stage has matrix products.";
  if (!dots.length) return h("p", { class: "wb-note" }, without);
  const svg = selectable(context, {
    dots,
    chip,
    what: "stages",
    spoken: ({ index, intensity }) => {
      const { kind, stage, name, bound } = stages[index];
      const role =
        kind === "program" ? "the whole program" : `${kind} stage ${stage}${name === kind ? "" : ` ${name}`}`;
      return `${role}: ${intensity.toPrecision(3)} matrix FLOPs per byte, bound by ${bound}`;
    },
    choose: ({ index }) => context.select({ stage: stages[index].stage }),
    isChosen: ({ stage }, index) => stages[index].stage === stage,
  });
  const words =
    `${chip.name}, ${formatBandwidth(chip.bandwidth)}. ${plural(dots.length, "stage")} of one device; the area of a dot ` +
    "is its predicted time.";
  return h("div", {}, svg, h("p", { class: "wb-note" }, words));
}

type Selectable = Omit<RooflineOptions, "frame"> & {
  isChosen: (selection: ViewContext<"cost">["selection"], index: number) => boolean;
};

/** A roofline whose dots follow the selection. */
function selectable(context: ViewContext<"cost">, { isChosen, ...options }: Selectable): SVGSVGElement {
  const svg = rooflinePicture({ ...options, frame: FRAME });
  const follow = () => {
    for (const mark of svg.querySelectorAll<SVGElement>("[data-dot]"))
      mark.classList.toggle("wb-selected", isChosen(context.selection, Number(mark.dataset.dot)));
  };
  context.onSelection(follow);
  follow();
  return svg;
}
