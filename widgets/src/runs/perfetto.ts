// A run as a trace file that ui.perfetto.dev and chrome://tracing open.
import type { Scene } from "./scene";
import { KINDS, kindOf } from "./spans";

const CHUNK = 20_000;
const PROCESS = 1;

/** The trace as JSON text in parts, so that a million spans are never one string. */
export function traceParts(scene: Scene): string[] {
  const { columns, data, tracks } = scene;
  const parts = ['{"displayTimeUnit":"ns","traceEvents":[\n'];
  const named = (name: string, tid: number, value: string) =>
    JSON.stringify({ ph: "M", pid: PROCESS, tid, name, args: { name: value } });
  const lines = [
    named("process_name", 0, data.title),
    ...tracks.map((_, at) => named("thread_name", at, scene.labelOf(at))),
  ];
  data.rounds.forEach((moment, call) =>
    lines.push(JSON.stringify({ ph: "i", s: "g", pid: PROCESS, tid: 0, ts: 1e6 * moment, name: `call ${call + 1}` })),
  );
  const places = data.paths.map(({ frames, stage, line }) => ({ path: frames.join(" > "), stage, line }));
  const flush = () => {
    if (lines.length) parts.push((parts.length > 1 ? ",\n" : "") + lines.splice(0).join(",\n"));
  };
  tracks.forEach(({ spans }, tid) => {
    for (const span of spans) {
      const name = data.names[columns.name[span]];
      const cat = KINDS[kindOf(columns, span)];
      const event = { ph: "X", pid: PROCESS, tid, ts: 1e6 * columns.start[span], dur: 1e6 * columns.seconds[span] };
      lines.push(
        JSON.stringify({
          ...event,
          name: cat === "wait" ? `wait: ${name}` : name,
          cat,
          args: places[columns.path[span]],
        }),
      );
      if (lines.length >= CHUNK) flush();
    }
  });
  flush();
  return [...parts, "\n]}"];
}
