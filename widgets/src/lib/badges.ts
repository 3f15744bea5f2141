// Findings of the advice view, as small marks wherever something of them is shown.
import { button } from "./dom";
import type { AdviceReport, Finding } from "./states";
import type { ViewContext } from "./view";

export type Place = "nodes" | "instructions" | "leaves" | "axes";

type Indexed = Record<Place, Map<string | number, Finding[]>>;
const indexes = new WeakMap<AdviceReport, Indexed>();

/** The findings about one thing, in the order of their rank. */
export function findingsAt(report: AdviceReport | undefined, place: Place, value: string | number): Finding[] {
  if (!report) return [];
  let index = indexes.get(report);
  if (!index) {
    index = { nodes: new Map(), instructions: new Map(), leaves: new Map(), axes: new Map() };
    for (const finding of report.findings)
      for (const kind of ["nodes", "instructions", "leaves", "axes"] as const)
        for (const each of finding[kind]) {
          const known = index[kind].get(each);
          if (known) known.push(finding);
          else index[kind].set(each, [finding]);
        }
    indexes.set(report, index);
  }
  return index[place].get(value) ?? [];
}

export const reportOf = (context: ViewContext): AdviceReport | undefined => context.liveOf("advice", "report");

/** A mark beside things that findings are about, which opens the first of them; null where there are none. */
export function badge(context: ViewContext, place: Place, ...values: (string | number)[]): HTMLElement | null {
  const about = values.flatMap((value) => findingsAt(reportOf(context), place, value));
  const found = [...new Set(about)].sort((a, b) => a.number - b.number);
  if (!found.length) return null;
  const words = `Advice: ${found.map(({ title }) => title).join(" ")}`;
  const go = () => {
    context.setOf("advice", "finding", found[0].number);
    context.open("advice");
  };
  return button("!", go, { class: "wb-finding", "data-tip": words, "aria-label": words, tabindex: -1 });
}

/** Calls back now if there is a report, and whenever there is another one. */
export function onReport(context: ViewContext, callback: (report: AdviceReport | undefined) => void): void {
  let last: string | undefined;
  const follow = () => {
    const report = reportOf(context);
    const now = report && JSON.stringify(report);
    if (now === last) return;
    last = now;
    callback(report);
  };
  context.onLive(follow);
  follow();
}
