// The playground: five knobs, the run, runs before it, who holds what, and the code that does the same.
import { button, h, replace, uniqueId } from "../lib/dom";
import { formatBytes, formatShare } from "../lib/format";
import { clamp } from "../lib/keyboard";
import { stageButton } from "../lib/stage";
import type { PlaygroundRun, RunLive, RunState } from "../lib/states";
import { takeAlong } from "../lib/take-along";
import type { RenderView, ViewContext } from "../lib/view";
import { Chart, type Line } from "./chart";
import { acrossSeeds } from "./curves";
import { DriftPicture } from "./drift";
import { Holdings } from "./holdings";
import { type Knob, knobOf, type Value } from "./knobs";
import { run } from "./run";

const FIRST = ["algorithm", "alpha", "local_steps", "learning_rate", "participation"]; // the others are folded
const PAUSE = 120; // milliseconds between two questions while a slider is dragged
const ALPHAS = [0.1, 1, 12.8];
const SEEDS = 3;
const OVER = [undefined, "finished", "stopped", "interrupted", "failed"];

type Chosen = Record<string, Value>;
/** The part of a context that a view inside of another sees. */
function inner(context: ViewContext<"playground">): ViewContext<"run"> {
  return Object.create(context, {
    state: { value: (key: keyof RunState) => context.state("run")[key] },
    live: { value: (key: keyof RunLive) => context.liveOf("run", key) },
  });
}

/** Asks at once, and then no more often than every so many milliseconds; the last question always counts. */
export function throttled(ask: () => Promise<unknown>, milliseconds: number): () => void {
  let waiting = false;
  let again = false;
  const go = () => {
    if (waiting) {
      again = true;
      return;
    }
    waiting = true;
    const rest = new Promise((done) => setTimeout(done, milliseconds));
    void Promise.allSettled([ask(), rest]).then(() => {
      waiting = false;
      if (again) {
        again = false;
        go();
      }
    });
  };
  return go;
}

class Playground {
  private readonly knobs = new Map<string, Knob>();
  private readonly begin = button("Run", () => this.start([this.chosen()]), { class: "wb-primary" });
  private readonly wrong = h("p", { class: "wb-wrong", role: "alert", hidden: true });
  private readonly told = h("div", {});
  private readonly table = h("div", {});
  private readonly empty = h(
    "p",
    { class: "wb-note" },
    "Nothing has run yet. Training runs in the kernel, in the background: the notebook stays responsive, and every " +
      "round is drawn as it ends.",
  );
  private readonly pane = h("div", { class: "wb-pane wb-playrun", hidden: true });
  private readonly code = h("pre", {
    tabindex: 0,
    role: "region",
    "aria-label": "The notebook cell that does the same",
  });
  private readonly chart: Chart;
  private readonly chartBox: HTMLElement;
  private readonly holdings: Holdings;
  private readonly drift: DriftPicture;
  private readonly askHoldings: () => void;
  private readonly askCode: () => void;
  private queue: Chosen[] = [];
  private ran = false;
  private parts: readonly HTMLElement[] = [];
  private part = 0;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"playground">,
  ) {
    this.holdings = new Holdings(context);
    this.drift = new DriftPicture(context);
    this.chart = new Chart({ theme: context.theme, signal: context.signal, sync: uniqueId(), height: 230 });
    this.chartBox = h(
      "div",
      { class: "wb-tile", hidden: true },
      h("h3", {}, "Test accuracy of this and earlier experiments"),
      this.chart.node,
    );
    if (!context.hasKernel)
      this.empty.textContent =
        "This page has no kernel, so it cannot train. Paste the cell into a notebook and run the cell there.";
    this.askHoldings = throttled(() => this.fetchHoldings(), PAUSE);
    this.askCode = throttled(() => this.fetchCode(), PAUSE);
    const form = this.form();
    const before = h("div", {}, this.empty, this.table, this.told);
    const parts = [this.chartBox, this.cell(), this.holdings.node, this.drift.node, before, this.pane];
    const results = h("div", { class: "wb-playresults" }, parts);
    this.parts = [form, ...(parts as HTMLElement[])];
    host.append(this.bar(), h("div", { class: "wb-playground" }, form, results));
    run(this.pane, inner(context));
    context.onLive(() => this.draw());
    this.changed();
    this.draw();
  }

  private bar(): HTMLElement {
    const three = button(
      `Run α = ${ALPHAS.map((alpha) => (alpha > 12 ? "none" : alpha)).join(", ")}`,
      () => this.start(ALPHAS.map((alpha) => ({ ...this.chosen(), alpha }))),
      {
        "data-tip": "Three runs, one after another, that differ only in the heterogeneity of their labels.",
      },
    );
    const seeds = button(
      `Run ${SEEDS} seeds`,
      () =>
        this.start(
          Array.from({ length: SEEDS }, (_, i) => ({ ...this.chosen(), seed: Number(this.chosen().seed) + i })),
        ),
      {
        "data-tip": "Runs that differ only in their seeds are drawn as a mean with a band.",
      },
    );
    const back = button("Reset settings", () => this.reset());
    const { signal, say } = this.context;
    for (const each of [three, seeds]) each.disabled = !this.context.hasKernel;
    const onStage = stageButton(this.begin, { signal, say: (text) => say(text), step: (by) => this.turn(by) });
    return h(
      "div",
      { class: "wb-runbar" },
      h("div", { class: "wb-tools" }, this.begin, three, seeds, back, onStage, this.wrong),
    );
  }

  /** On a stage: the settings, the chart, the cell and so on, one after the other. */
  private turn(by: 1 | -1): void {
    const seen = this.parts.filter((part) => part.offsetHeight > 0);
    this.part = clamp(this.part + by, 0, seen.length - 1);
    seen[this.part]?.scrollIntoView({ block: "start" });
  }

  private form(): HTMLElement {
    const usual = { ...this.context.state("usual"), ...this.context.setting<Chosen>("chosen", {}) };
    const fields = this.context.state("fields");
    for (const field of fields) this.knobs.set(field.name, knobOf(field, usual[field.name]));
    const nodes = (names: readonly string[]) => names.map((name) => this.knobs.get(name)?.node);
    const rest = fields.map(({ name }) => name).filter((name) => !FIRST.includes(name));
    const form = h(
      "form",
      { class: "wb-playform", "aria-label": "Settings" },
      nodes(FIRST),
      h("details", {}, h("summary", {}, "More settings"), nodes(rest)),
    );
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => this.changed());
    return form;
  }

  private cell(): HTMLElement {
    const head = h(
      "div",
      { class: "wb-row wb-loghead" },
      h("h3", {}, "One notebook cell that does the same"),
      takeAlong(this.context, () => this.code.textContent ?? "", this.code),
    );
    return h("div", { class: "wb-tile wb-cell" }, head, this.code);
  }

  private chosen(): Chosen {
    return Object.fromEntries([...this.knobs].map(([name, knob]) => [name, knob.get()]));
  }

  private changed(): void {
    this.context.set("chosen", this.chosen());
    if (!this.context.hasKernel) return;
    this.askHoldings();
    this.askCode();
  }

  private reset(): void {
    const usual = this.context.state("usual");
    for (const [name, knob] of this.knobs) knob.set(usual[name]);
    this.changed();
  }

  private refuse(error: unknown): void {
    this.wrong.hidden = !error;
    this.wrong.textContent = error ? String((error as Error).message ?? error).replace(/^\w+: /, "") : "";
  }

  private async fetchHoldings(): Promise<void> {
    const { clients, alpha, seed } = this.chosen();
    const counts = await this.context.request("holdings", { clients, alpha, seed }, { quiet: true }).catch(() => null);
    if (counts) this.holdings.show(counts);
  }

  private async fetchCode(): Promise<void> {
    try {
      this.code.textContent = await this.context.request("code", this.chosen(), { quiet: true });
      this.refuse(null);
    } catch (error) {
      this.refuse(error);
    }
  }

  // Running

  private get over(): boolean {
    return OVER.includes(this.context.liveOf("run", "status"));
  }

  private start(all: Chosen[]): void {
    this.queue = all.slice(1);
    this.refuse(null);
    this.begin.disabled = true;
    this.context.say("Preparing the experiment");
    this.context
      .request("start", all[0])
      .then(
        () => this.context.say("The experiment has started"),
        (error) => this.refuse(error),
      )
      .finally(() => {
        this.begin.disabled = !this.over;
      });
  }

  /** The next of several runs, once one has finished; a stopped one ends the series. */
  private next(): void {
    const state = this.context.liveOf("run", "status");
    if (state === "finished" && this.queue.length) {
      const [first, ...rest] = this.queue;
      this.queue = [];
      this.start([first, ...rest]);
    } else if (this.over && state !== "finished") this.queue = [];
  }

  private draw(): void {
    const running = !this.over;
    if (this.ran && !running) this.context.say(`The experiment has ${this.context.liveOf("run", "status")}`);
    this.ran = running;
    this.pane.hidden = this.context.liveOf("run", "status") === undefined;
    this.begin.disabled = running || !this.context.hasKernel;
    this.begin.title = this.context.hasKernel ? "" : "Needs a kernel: this page shows only finished runs";
    this.begin.textContent = running ? "Running" : "Run";
    replace(
      this.told,
      (this.context.live("reported") ?? []).map((each) => h("p", { class: "wb-note" }, each)),
    );
    this.drift.offer(this.context.live("drift_rounds") ?? []);
    this.compare();
    this.next();
  }

  private compare(): void {
    const all = this.context.live("runs") ?? [];
    const known = all.filter(({ accuracies }) => accuracies.length);
    this.empty.hidden = all.length > 0;
    this.chartBox.hidden = !known.length;
    if (!known.length) return replace(this.table);
    const groups = [...new Set(known.map(({ group }) => group))];
    const newest = known[known.length - 1].group;
    const drawn = groups.map((group, i) => ({
      group,
      colour: `series-${i % 8}`,
      ...acrossSeeds(known.filter((each) => each.group === group).map(({ accuracies }) => accuracies)),
      runs: known.filter((each) => each.group === group).length,
    }));
    const longest = Math.max(...drawn.map(({ mean }) => mean.length));
    const padded = (values: readonly number[]) => Array.from({ length: longest }, (_, i) => values[i] ?? null);
    const ordered = [...drawn].sort((a, b) => Number(a.group === newest) - Number(b.group === newest));
    const lines = ordered.map(
      ({ group, colour, mean }): Line => ({
        label: group,
        values: padded(mean),
        colour,
        width: group === newest ? 3 : 1.5,
      }),
    );
    this.chart.draw({
      x: Array.from({ length: longest }, (_, i) => i + 1),
      lines,
      bands: drawn
        .filter(({ runs }) => runs > 1)
        .map(({ least, most, colour }) => ({ low: padded(least), high: padded(most), colour })),
      log: false,
      range: [0, 1],
      label: `Test accuracy over rounds: ${known.map(({ name, accuracies }) => `${name}, ${formatShare(accuracies.at(-1))}`).join("; ")}`,
      format: formatShare,
      formatX: (value) => (Number.isInteger(value) ? `round ${value}` : ""),
    });
    this.rows(known, drawn, all);
  }

  private rows(
    known: readonly PlaygroundRun[],
    drawn: readonly { group: string; colour: string }[],
    all: readonly PlaygroundRun[],
  ): void {
    const rows = known.map((each) => {
      const key = h("span", { class: "wb-key" });
      key.style.background = `var(--wb-${drawn.find(({ group }) => group === each.group)?.colour})`;
      const forget = () => this.context.request("forget", { number: each.number }).catch(() => {});
      const last =
        each === all[all.length - 1]
          ? h("span", { class: "wb-note" }, "this one")
          : button("×", forget, { class: "wb-link", "aria-label": `Forget ${each.name}` });
      return h(
        "tr",
        {},
        h("td", {}, key),
        h("td", { class: "wb-runname" }, each.name),
        h("td", { class: "wb-num" }, formatShare(each.accuracies.at(-1))),
        h("td", { class: "wb-num" }, formatBytes(each.sent)),
        h("td", {}, last),
      );
    });
    const names = ["line", "experiment", "test accuracy", "uploaded", ""];
    const head = names.map((name) => h("th", { scope: "col" }, name || h("span", { class: "wb-hidden" }, "forget")));
    const table = h("table", { "aria-label": "Experiments" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
    replace(
      this.table,
      h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Experiments, table" }, table),
    );
  }
}

export const playground: RenderView<"playground"> = (host, context) => {
  new Playground(host, context);
};
