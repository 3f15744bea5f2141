// Bytes in use over time, as the allocators of a recorded profile reported them.
import { h, s } from "../lib/dom";
import { formatBytes, formatCount, formatSeconds } from "../lib/format";
import { range, ticks } from "../lib/scale";
import type { AllocatorFacts } from "../lib/states";
import type { RenderView } from "../lib/view";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [720, 150, 76, 22];

/** Steps from moment to moment: the amount stays until the next report. */
export function steps(xs: readonly number[], ys: readonly number[]): string {
  let text = "";
  xs.forEach((x, i) => {
    text += i ? `H${x.toFixed(1)}V${ys[i].toFixed(1)}` : `M${x.toFixed(1)} ${ys[i].toFixed(1)}`;
  });
  return text;
}

function curve({ where, name, peak }: AllocatorFacts, seconds: Float32Array, bytes: Float32Array): SVGSVGElement {
  const [start, end] = range(seconds);
  const most = Math.max(peak, range(bytes)[1], 1);
  const x = (value: number) => LEFT + ((WIDTH - LEFT - 8) * (value - start)) / (end - start || 1);
  const y = (value: number) => 8 + (HEIGHT - BOTTOM - 8) * (1 - value / most);
  const levels = ticks(0, most, 3).map((value) => [
    s("line", { x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value), class: "wb-grid" }),
    s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, formatBytes(value)),
  ]);
  const xs = Array.from(seconds, x);
  const path = steps(xs, Array.from(bytes, y));
  const label = `${name} on ${where}: at most ${formatBytes(peak)}, from ${formatSeconds(0)} to ${formatSeconds(end - start)}`;
  return s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "wb-roofline wb-allocator", role: "img", "aria-label": label },
    levels,
    s("path", { d: `${path}V${HEIGHT - BOTTOM}H${xs[0].toFixed(1)}Z`, class: "wb-area" }),
    s("path", { d: path, class: "wb-step" }),
    s("line", { x1: LEFT, x2: WIDTH - 8, y1: y(peak), y2: y(peak), class: "wb-peak" }),
    s("text", { x: WIDTH - 8, y: HEIGHT - 6, "text-anchor": "end" }, formatSeconds(end - start)),
  );
}

export const allocators: RenderView<"allocators"> = (host, context) => {
  const all = context.state("allocators");
  const made = all.map((each, i) => {
    const [seconds, bytes] = [context.array(`${i}.seconds`), context.array(`${i}.bytes`)];
    const note = `at most ${formatBytes(each.peak)} · ${formatCount(each.events)} reports`;
    const picture =
      seconds.length > 1 ? curve(each, seconds, bytes) : h("p", { class: "wb-note" }, "Reported once: no curve.");
    return h(
      "section",
      { "aria-label": `${each.name} on ${each.where}` },
      h("h3", {}, `${each.where} · ${each.name}`),
      h("p", { class: "wb-note" }, note),
      picture,
    );
  });
  host.append(h("div", { class: "wb-scrolls" }, made));
};
