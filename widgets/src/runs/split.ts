// Every device of a recorded profile: how its time splits, as bars of one scale; programs and what is not known below.
import { type Block, blockOf } from "../lib/details";
import { h } from "../lib/dom";
import { formatCount, formatSeconds } from "../lib/format";
import type { SplitDevice } from "../lib/states";
import type { RenderView, ViewContext } from "../lib/view";

const WORDS: Record<string, string> = {
  compute: "computing",
  collective: "collectives",
  copy: "copies",
  other: "other",
  wait: "waiting",
  idle: "idle",
};

/** The widths of the parts of a bar in percent of the longest span; together at most 100. */
export function widths(seconds: readonly number[], longest: number): number[] {
  const whole = Math.max(
    longest,
    seconds.reduce((sum, value) => sum + value, 0),
  );
  return seconds.map((value) => (whole > 0 ? (100 * value) / whole : 0));
}

function bar(device: SplitDevice, parts: readonly string[], longest: number): HTMLElement {
  const said = parts
    .map((part, i) => [WORDS[part], device.seconds[i]] as const)
    .filter(([, seconds]) => seconds > 0)
    .map(([word, seconds]) => `${word} ${formatSeconds(seconds)}`);
  const beside = device.overlapped ? `, and ${formatSeconds(device.overlapped)} overlapping other work` : "";
  const words = `${device.where}: ${said.join(", ")}${beside}`;
  const pieces = widths(device.seconds, longest).map((width, i) => {
    const piece = h("div", { class: `wb-splitpart wb-split-${parts[i]}` });
    piece.style.width = `${width}%`;
    return piece;
  });
  return h(
    "div",
    { class: "wb-splitrow" },
    h("b", {}, device.where),
    h("div", { class: "wb-splitbar", role: "img", "aria-label": words, "data-tip": words, tabindex: 0 }, pieces),
    h("span", { class: "wb-num" }, formatSeconds(device.span)),
    h("span", { class: "wb-note" }, `${formatCount(device.events)} events`),
  );
}

function tables(context: ViewContext<"split">): Block[] {
  const made: Block[] = [
    {
      form: "table",
      title: "Programs",
      columns: ["program", "seconds", "operations", "runs", "HLO", "FLOPs per call", "peak"],
      rows: context.state("programs"),
    },
  ];
  const unjoined = context.state("unjoined");
  if (unjoined.length)
    made.push({
      form: "table",
      title: "Without an instruction",
      columns: ["kind", "events", "seconds", "counted in the time", "names"],
      rows: unjoined,
    });
  for (const text of context.state("notes")) made.push({ form: "note", title: "", text });
  return made;
}

export const split: RenderView<"split"> = (host, context) => {
  const parts = context.state("parts");
  const devices = context.state("devices");
  const used = parts.filter((_, i) => devices.some(({ seconds }) => seconds[i] > 0));
  const legend = used.map((part) => [h("i", { class: `wb-splitkey wb-split-${part}` }), WORDS[part]]);
  const kinds = [...new Set(devices.map(({ kind }) => kind))].join(", ");
  host.append(
    h(
      "div",
      { class: "wb-scrolls" },
      h("h3", {}, `${formatCount(devices.length)} devices: ${kinds}`),
      h("div", { class: "wb-row wb-legend" }, legend),
      devices.map((device) => bar(device, parts, context.state("longest"))),
      tables(context).map((block) => blockOf(context, block)),
    ),
  );
};
