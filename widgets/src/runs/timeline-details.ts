// What stands beside the timeline: facts of a span, sums of an area, shares of every device.
import { showDetails } from "../lib/details";
import { button, h } from "../lib/dom";
import { formatCount, formatSeconds, formatShare } from "../lib/format";
import type { ViewContext } from "../lib/view";
import { exactSeconds } from "./camera";
import type { Area } from "./paint";
import type { Scene } from "./scene";
import { deviceOf, KINDS, kindOf, NOTHING, operationsBetween, sumsBetween } from "./spans";

export const KIND_WORDS: Readonly<Record<string, string>> = {
  compute: "compute",
  collective: "collective",
  copy: "copies",
  wait: "waiting",
  other: "other",
};
const MOST_ROWS = 60;

export function sentenceOf(scene: Scene, span: number): string {
  const { columns, data } = scene;
  const kind = KINDS[kindOf(columns, span)];
  const seconds = formatSeconds(columns.seconds[span]);
  const where = data.devices[deviceOf(columns, span)];
  const other = columns.awaited[span];
  const late = other === NOTHING ? "" : `, for ${data.devices[deviceOf(columns, other)]}`;
  return kind === "wait"
    ? `${where} waits ${seconds} in ${scene.nameOf(span)}${late}`
    : `${scene.nameOf(span)} on ${where}, ${seconds}, ${kind}`;
}

/** Executions of the same operation on the same device, to tell whether one was unusual. */
function others(scene: Scene, span: number): { count: number; total: number; longest: number } {
  const { columns } = scene;
  let [count, total, longest] = [0, 0, 0];
  for (let i = 0; i < columns.start.length; i++) {
    if (columns.name[i] !== columns.name[span] || columns.place[i] !== columns.place[span]) continue;
    count++;
    total += columns.seconds[i];
    longest = Math.max(longest, columns.seconds[i]);
  }
  return { count, total, longest };
}

export function showSpan(context: ViewContext, pane: HTMLElement, scene: Scene, span: number, zoom: () => void): void {
  const { columns, data } = scene;
  const kind = KINDS[kindOf(columns, span)];
  const place = scene.placeOf(span);
  const same = others(scene, span);
  const start = columns.start[span];
  const call = data.rounds.filter((moment) => moment <= start).length;
  const other = columns.awaited[span];
  const rows: [string, string][] = [
    ["duration", formatSeconds(columns.seconds[span])],
    ["starts at", exactSeconds(start, 1e-7)],
    ["device", data.devices[deviceOf(columns, span)]],
    ["kind", KIND_WORDS[kind]],
  ];
  if (other !== NOTHING) rows.push(["waits for", data.devices[deviceOf(columns, other)]]);
  if (call) rows.push(["call", `${call} of ${data.calls}`]);
  if (place?.frames.length) rows.push(["in", place.frames.join(" › ")]);
  if (place?.line) rows.push(["source", place.line]);
  const usual = `${formatCount(same.count)}, ${formatSeconds(same.total / same.count)} on average, ${formatSeconds(same.longest)} at most`;
  rows.push(["executions on this device", usual]);
  const extra = [h("div", { class: "wb-row wb-steps" }, button("Zoom to it", zoom))];
  const blocks = [{ form: "facts" as const, title: "", rows }];
  const title = kind === "wait" ? `Waiting in ${scene.nameOf(span)}` : scene.nameOf(span);
  showDetails(context, pane, {
    title,
    kind: kind === "collective" ? "reduce" : "clients",
    subtitle: "measured",
    blocks,
    extra,
  });
}

export function showArea(context: ViewContext, pane: HTMLElement, scene: Scene, area: Area, zoom: () => void): void {
  const tracks = scene.tracks.slice(area.firstTrack, area.lastTrack + 1);
  const devices = new Set(tracks.map(({ device }) => device)).size;
  const whole = (area.to - area.from) * devices;
  const kinds = KINDS.map((_, kind) =>
    tracks.reduce((sum, track) => sum + sumsBetween(track, area.from, area.to)[kind], 0),
  );
  const operations = operationsBetween(scene.columns, tracks, area.from, area.to);
  const count = operations.reduce((sum, each) => sum + each.count, 0);
  const facts: [string, string][] = [
    ["time", `${exactSeconds(area.from, 1e-6)} to ${exactSeconds(area.to, 1e-6)}`],
    ["spans", formatCount(count)],
    ...KINDS.map((kind, i): [string, string] => [
      KIND_WORDS[kind],
      `${formatSeconds(kinds[i])} · ${formatShare(kinds[i] / whole)}`,
    ]),
  ].filter((_, i) => i < 2 || kinds[i - 2] > 0) as [string, string][];
  const idle = whole - kinds.reduce((a, b) => a + b, 0);
  if (idle > 1e-3 * whole) facts.push(["nothing measured", `${formatSeconds(idle)} · ${formatShare(idle / whole)}`]);
  const rows = operations.slice(0, MOST_ROWS).map((each) => {
    const name = scene.data.names[each.name];
    const shown = KINDS[each.kind] === "wait" ? `waiting in ${name}` : name;
    return [
      shown,
      formatCount(each.count),
      formatSeconds(each.seconds),
      formatShare(each.seconds / whole),
      formatSeconds(each.longest),
    ];
  });
  const left = operations.length - rows.length;
  const columns = ["operation", "executions", "sum", "share", "longest"];
  const note = left > 0 ? `${formatCount(left)} more with smaller sums.` : undefined;
  const title = `${formatSeconds(area.to - area.from)} on ${formatCount(devices)} device${devices === 1 ? "" : "s"}`;
  showDetails(context, pane, {
    title,
    kind: "broadcast",
    subtitle: "Selected area; percentages are of the devices' time in this area",
    blocks: [
      { form: "facts", title: "", rows: facts },
      { form: "table", title: "Operations in the area", columns, rows, note },
    ],
    extra: [h("div", { class: "wb-row wb-steps" }, button("Zoom to the area", zoom))],
  });
}

/** The whole run: seconds of every device by kind. */
export function showWhole(context: ViewContext, pane: HTMLElement, scene: Scene): void {
  const { devices } = scene.data;
  const used = KINDS.filter((_, kind) => scene.tracks.some(({ before, spans }) => before[kind][spans.length] > 0));
  const rows = devices.map((where, device) => {
    const sums = KINDS.map(() => 0);
    for (const track of scene.tracks)
      if (track.device === device) KINDS.forEach((_, kind) => (sums[kind] += track.before[kind][track.spans.length]));
    return [where, ...used.map((kind) => formatSeconds(sums[KINDS.indexOf(kind)]))];
  });
  const facts: [string, string][] = [
    ["spans", formatCount(scene.columns.start.length)],
    ["devices", formatCount(devices.length)],
    ["calls", formatCount(scene.data.calls)],
    ["from first to last", formatSeconds(scene.end)],
  ];
  showDetails(context, pane, {
    title: scene.data.title,
    kind: "server",
    subtitle: scene.data.sentence,
    blocks: [
      { form: "facts", title: "", rows: facts },
      {
        form: "table",
        title: "Seconds per device",
        columns: ["device", ...used.map((kind) => KIND_WORDS[kind])],
        rows,
      },
    ],
  });
}
