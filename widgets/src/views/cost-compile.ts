// Chooses hardware that is not here, compiles for it in the background, shows how far that is, and stops it.

import { button, h, menu, type Option, replace } from "../lib/dom";
import { formatBytes, formatFlops, formatSeconds } from "../lib/format";
import type { JobState, TargetChoice, TargetCost } from "../lib/states";
import { copyText } from "../lib/take-along";
import type { ViewContext } from "../lib/view";
import { axesOf } from "./cost-data";

const OVER = { done: "Compiled", stopped: "Stopped", failed: "Failed" };
const ORDERS: Option<string>[] = [
  ["topology", "topology order"],
  ["naive", "naive: in the listed order"],
];

class CompilePanel {
  readonly node: HTMLElement;
  private readonly target = h("select", { "aria-label": "Machine" });
  private readonly compile: HTMLButtonElement;
  private readonly stop: HTMLButtonElement;
  private readonly bar = h(
    "div",
    { class: "wb-progress wb-busy", role: "progressbar", "aria-label": "Compilation" },
    h("div"),
  );
  private readonly words = h("span", { role: "status" });
  private readonly note = h("p", { class: "wb-note" });
  private readonly progress: HTMLElement;
  private chosen: TargetChoice;
  private order = "topology";
  private asked = false;

  constructor(
    private readonly context: ViewContext<"cost">,
    chips: readonly TargetChoice[],
  ) {
    const ready = chips.filter((each) => !each.install && each.targets.length);
    const v5e = (list: readonly TargetChoice[]) => list.find(({ chip }) => chip === "v5e");
    this.chosen = v5e(ready) ?? ready[0] ?? v5e(chips) ?? chips[0];
    const options = chips.map(
      ({ chip, install }): Option<string> => [chip, install ? `${chip} (compiler not installed)` : chip],
    );
    const chip = menu("Chip", options, this.chosen.chip, (name) => {
      this.chosen = chips.find((each) => each.chip === name) ?? this.chosen;
      this.offer();
    });
    const order = menu("Order of devices", ORDERS, this.order, (value) => {
      this.order = value;
    });
    const start = () => {
      this.asked = true;
      this.ask("compile", { target: this.target.value, order: this.order });
    };
    this.compile = button("Compile", start, { class: "wb-primary" });
    this.stop = button("Stop", () =>
      this.ask("stop_work", { work: "compile" }).then(() =>
        context.say("Stopping: the compiler's process is being terminated."),
      ),
    );
    this.progress = h("div", { class: "wb-row", hidden: true }, this.words, this.bar, this.stop);
    const label = (text: string, node: Node) => h("label", {}, text, " ", node);
    const row = h(
      "div",
      { class: "wb-row" },
      label("chip", chip),
      label("machine", this.target),
      label("devices", order),
      this.compile,
    );
    const title = "Compile for an ahead-of-time target";
    this.node = h(
      "section",
      { class: "wb-tile wb-compile", "aria-label": title },
      h("h3", {}, title),
      row,
      this.progress,
      this.note,
    );
    context.onLive(() => this.follow());
    this.offer();
  }

  private ask(name: "compile" | "stop_work", args: object): Promise<unknown> {
    return this.context.request(name, args).catch(() => {});
  }

  private offer(): void {
    const { targets, install, terms, description } = this.chosen;
    replace(
      this.target,
      targets.map((name) => h("option", { value: name, selected: name === this.chosen.default }, name)),
    );
    const how = install
      ? "Its compiler is not installed: "
      : targets.length
        ? "Compiled by the vendor's own compiler in a separate process; the program does not run. "
        : "None of its machines fits the axes of this mesh. ";
    replace(this.note, `${description}. ${how}`, install ? h("code", {}, install) : null, ` (${terms})`);
    this.follow();
  }

  private follow(): void {
    const job = this.context.live("job");
    const running = job?.status === "running";
    this.compile.disabled = running || Boolean(this.chosen.install) || !this.target.value;
    this.progress.hidden = !job;
    this.stop.hidden = this.bar.hidden = !running;
    if (!job) return;
    const said = job.error ? `: ${job.error.message.replace(/^\w+Error: /, "")}` : "";
    this.words.textContent =
      job.status === "running"
        ? `${job.target}: ${job.phase}, ${job.seconds.toFixed(0)} s`
        : `${OVER[job.status]}: ${job.target}${said}`;
    this.words.classList.toggle("wb-wrong", job.status === "failed");
    if (this.asked) this.reveal(job.status);
  }

  /** Scrolls to what was asked for: to the progress, or to the result above. */
  private reveal(status: JobState["status"]): void {
    this.asked = status === "running";
    if (status !== "done") return this.progress.scrollIntoView({ block: "nearest" });
    for (let up = this.node.parentElement; up && !up.matches(".wb"); up = up.parentElement) up.scrollTop = 0;
  }
}

/** Nothing where the view cannot compile. */
export function compilePanel(context: ViewContext<"cost">): HTMLElement | null {
  const chips = context.state("elsewhere");
  return chips?.length && context.hasKernel ? new CompilePanel(context, chips).node : null;
}

type Row = [string, (target: TargetCost) => string];

/** One column per target: does it fit, what does it need, how long would it take, which strategy do collectives use. */
export function sideBySide(
  context: ViewContext<"cost">,
  targets: readonly TargetCost[],
  compiled: ReadonlySet<string>,
): HTMLElement | null {
  if (targets.length < 2) return null;
  const strategies = [...new Set(targets.flatMap((each) => Object.keys(each.strategies)))];
  const wire = (each: TargetCost, axis: string) => each.stages.reduce((sum, stage) => sum + (stage.wire[axis] ?? 0), 0);
  const fits = ({ fits: known, peak, available }: TargetCost) =>
    known === null ? "unknown" : known ? "yes" : `NO: ${formatBytes((peak ?? 0) - (available ?? 0))} too much`;
  const rows: Row[] = [
    ["mesh", (each) => each.mesh || "none"],
    ["fits", fits],
    [
      "peak memory per device",
      (each) =>
        each.peak === null
          ? "unknown"
          : formatBytes(each.peak) + (each.available === null ? "" : ` of ${formatBytes(each.available)}`),
    ],
    ["matrix FLOPs per device", (each) => formatFlops(each.flops)],
    ["elementwise FLOPs", (each) => formatFlops(each.elementwise)],
    ["one call, predicted", (each) => formatSeconds(each.seconds)],
    ...axesOf(targets.flatMap(({ stages }) => stages)).map(
      (axis): Row => [`sent over ${axis}`, (each) => formatBytes(wire(each, axis))],
    ),
    ...strategies.map((axis): Row => [`strategy over ${axis}`, (each) => each.strategies[axis] ?? "not reported"]),
  ];
  const insert = (name: string) => {
    const into = (place: string | null) => {
      const found = place ? `${place}.compiled[${JSON.stringify(name)}]` : null;
      if (!found) return context.say("Assign the explorer to a variable first: explorer = wb.explore(…)(…)");
      const code = `import workbench as wb\n\nelsewhere = ${found}  # compiled, nothing ran\nwb.show(elsewhere)`;
      if (!context.insertCell(code)) copyText(code, null, () => context.say("Copied: paste it into a cell"));
    };
    context.request("name_in_notebook").then(into, () => {});
  };
  const take = (name: string) =>
    button("Insert as cell", () => insert(name), { "aria-label": `Insert ${name} as a cell`, class: "wb-link" });
  const forget = (name: string) =>
    button("×", () => context.request("forget", { target: name }).catch(() => {}), {
      "aria-label": `Remove ${name}`,
    });
  const head = targets.map((each) =>
    h(
      "th",
      { scope: "col" },
      each.target,
      " ",
      compiled.has(each.target) ? [take(each.target), " ", forget(each.target)] : null,
    ),
  );
  const body = rows.map(([name, value]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      targets.map((each) => h("td", { class: name === "fits" && each.fits === false ? "wb-wrong" : "" }, value(each))),
    ),
  );
  const table = h(
    "table",
    { class: "wb-sides" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "per device"), head)),
    h("tbody", {}, body),
  );
  const region = { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Targets side by side, table" };
  return h(
    "section",
    { "aria-label": "Targets side by side" },
    h("h3", {}, "Targets side by side"),
    h("div", region, table),
  );
}
