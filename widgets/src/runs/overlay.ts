// Several runs over one another: curves with bands over seeds, final values with intervals, differences with tests.

import { type Block, showDetails } from "../lib/details";
import { button, h, menu, replace, uniqueId } from "../lib/dom";
import { formatCount, plural } from "../lib/format";
import { split } from "../lib/split";
import type { ComparedResult, MetricCurve } from "../lib/states";
import type { RenderView, ViewContext } from "../lib/view";
import { Chart, type Line, type Plot } from "./chart";
import { canBeLog } from "./curves";
import { against, axisOf, edgesOf, metricOf, onAxis, ranked, SPREADS, type Spread } from "./overlay-data";

const AT_FIRST = 6; // results that are drawn before somebody chooses
const COLOURS = 8;
const DASHES: readonly (number[] | undefined)[] = [undefined, [7, 4], [2, 3], [9, 3, 2, 3]];

const amount = (value: number | null): string => (value === null ? "–" : formatCount(value));
const between = (low: number | null, high: number | null): string =>
  low === null || high === null ? "" : `${formatCount(low)} to ${formatCount(high)}`;

/** What a page shows: `results` and `pairs` come with every refresh while runs go on. */
class Overlay {
  private readonly chart: Chart;
  private readonly title = h("h3", {});
  private readonly table = h("div", {
    class: "wb-scroll",
    tabindex: 0,
    role: "region",
    "aria-label": "Results, table",
  });
  private readonly status = h("span", { class: "wb-note", role: "status" });
  private readonly log: HTMLInputElement;
  private readonly choices = h("span", { class: "wb-row" });
  private readonly detail: HTMLElement;
  private offered = "";

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"overlay">,
  ) {
    this.chart = new Chart({ theme: context.theme, signal: context.signal, sync: uniqueId(), height: 260 });
    this.log = h("input", { type: "checkbox", onchange: () => this.change("log", this.log.checked) });
    this.log.checked = context.setting("log", false);
    const { node, main, detail } = split(context, "Details of the selected result", 0.66);
    this.detail = detail;
    const body = h(
      "div",
      { class: "wb-scrolls" },
      h("div", { class: "wb-tile" }, this.title, this.chart.node),
      this.table,
    );
    main.append(this.tools(), body);
    host.append(node);
    context.onLive(() => this.draw());
    this.draw();
  }

  private get results(): readonly ComparedResult[] {
    return this.context.live("results") ?? this.context.state("results");
  }
  private get metric(): string {
    return this.context.setting<string>("metric", this.context.state("metric"));
  }
  private get minimize(): boolean {
    return this.context.setting<boolean>("minimize", this.context.state("minimize"));
  }
  private get spread(): Spread {
    return this.context.setting<Spread>("spread", "interval");
  }
  private get order(): number[] {
    return ranked(this.results, this.metric, this.minimize);
  }
  private get shown(): Set<string> {
    const chosen = this.context.setting<string[] | null>("shown", null);
    return new Set(chosen ?? this.order.slice(0, AT_FIRST).map((index) => this.results[index].name));
  }

  private change(name: string, value: unknown): void {
    this.context.set(name, value);
    this.draw();
  }

  private tools(): HTMLElement {
    const spread = menu<Spread>("Band over seeds", SPREADS, this.spread, (value) => this.change("spread", value));
    const show = (names: readonly string[]) => this.change("shown", names);
    const best = button(`Best ${AT_FIRST}`, () => show(this.order.slice(0, AT_FIRST).map((i) => this.results[i].name)));
    const all = button("All", () => show(this.results.map(({ name }) => name)));
    const none = button("None", () => show([]));
    const tools = [this.choices, h("label", {}, "Band over seeds ", spread), h("label", {}, this.log, " Logarithmic")];
    return h(
      "div",
      { class: "wb-tools" },
      tools,
      h("span", { class: "wb-row" }, "Draw ", best, all, none),
      this.status,
    );
  }

  /** The menus of metric and direction; metrics may come while runs go on. */
  private offer(): void {
    const names = [...new Set([this.metric, ...this.results.flatMap(({ metrics }) => metrics.map((m) => m.metric))])];
    if (this.offered === names.join("\n")) return;
    this.offered = names.join("\n");
    const metric = menu<string>(
      "Metric",
      names.map((name) => [name, name] as const),
      this.metric,
      (value) => this.change("metric", value),
    );
    const good = menu<string>(
      "Best is",
      [
        ["least", "lowest"],
        ["most", "highest"],
      ],
      this.minimize ? "least" : "most",
      (value) => this.change("minimize", value === "least"),
    );
    replace(this.choices, h("label", {}, "Metric ", metric), h("label", {}, "Best is ", good));
  }

  private draw(): void {
    this.offer();
    const { results, metric, order, shown } = this;
    const running = this.context.live("running") ?? false;
    const known = order.filter((index) => metricOf(results[index], metric)?.final !== undefined).length;
    const drawn = order.filter((index) => shown.has(results[index].name) && metricOf(results[index], metric));
    this.status.textContent = `${drawn.length} of ${plural(known, "result")} drawn${running ? "; still running" : ""}`;
    replace(this.title, metric);
    this.drawCurves(drawn);
    this.drawTable();
    this.describe();
  }

  private lookOf(index: number): Pick<Line, "colour" | "dash"> {
    return { colour: `series-${index % COLOURS}`, dash: DASHES[Math.floor(index / COLOURS) % DASHES.length] };
  }

  private drawCurves(drawn: readonly number[]): void {
    const { metric, spread, results } = this;
    const curves = drawn.map((index) => [index, metricOf(results[index], metric) as MetricCurve] as const);
    const x = axisOf(curves.map(([, curve]) => curve));
    const bands: Plot["bands"][number][] = [];
    const thin: Line[] = [];
    const lines: Line[] = [];
    for (const [index, curve] of [...curves].reverse()) {
      const look = this.lookOf(index);
      const edges = edgesOf(curve, spread);
      if (edges) bands.push({ low: onAxis(curve, edges[0], x), high: onAxis(curve, edges[1], x), colour: look.colour });
      if (spread === "seeds")
        curve.seeds.forEach((values, seed) => {
          const label = `${results[index].name}, seed ${results[index].seeds[seed] ?? seed}`;
          thin.push({ label, values: onAxis(curve, values, x), ...look, width: 0.8 });
        });
      lines.push({ label: results[index].name, values: onAxis(curve, curve.mean, x), ...look, width: 2.2 });
    }
    const columns = [...thin, ...lines].map(({ values }) => values);
    for (const { low, high } of bands) columns.push(low, high);
    const names = drawn.map((index) => results[index].name).join("; ");
    this.chart.draw({
      x,
      lines: [...thin, ...lines],
      bands,
      log: this.log.checked && canBeLog(columns),
      label: drawn.length ? `${metric} over the rounds of ${names}` : `${metric}: nothing is drawn`,
      format: formatCount,
      formatX: (value) => (Number.isInteger(value) ? `round ${value}` : ""),
    });
  }

  private drawTable(): void {
    const heads = ["drawn", "result", `final ${this.metric}`, "interval", "seeds", "status"];
    const rows = this.order.map((index) => this.row(index));
    const table = h(
      "table",
      { class: "wb-overlaid", "aria-label": "Results, best first" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((text) => h("th", { scope: "col" }, text)),
        ),
      ),
      h("tbody", {}, rows),
    );
    const focused = (this.table.querySelector(":focus") as HTMLElement | null)?.dataset.at;
    replace(this.table, table);
    if (focused) this.table.querySelector<HTMLElement>(`[data-at="${focused}"]`)?.focus();
  }

  private row(index: number): HTMLElement {
    const result = this.results[index];
    const curve = metricOf(result, this.metric);
    const { colour, dash } = this.lookOf(index);
    const tick = h("input", { type: "checkbox", "aria-label": `Draw ${result.name}`, "data-at": `tick-${index}` });
    tick.checked = this.shown.has(result.name) && curve !== undefined;
    tick.disabled = curve === undefined;
    tick.addEventListener("change", () => {
      const names = this.shown;
      if (tick.checked) names.add(result.name);
      else names.delete(result.name);
      this.change("shown", [...names]);
    });
    const swatch = h("span", { class: "wb-overlaid-swatch", "aria-hidden": "true" });
    swatch.style.borderTop = `3px ${dash ? "dashed" : "solid"} var(--wb-${colour})`;
    const pressed = this.context.setting("result", "") === result.name;
    const name = button(result.name, () => this.change("result", pressed ? "" : result.name), {
      class: "wb-overlaid-name",
      "aria-pressed": String(pressed),
      "data-at": `name-${index}`,
    });
    const left = result.left_out.length
      ? `${result.compared} (${result.left_out.length} left out)`
      : `${result.compared}`;
    return h(
      "tr",
      { "data-result": result.name },
      h("td", {}, tick, swatch),
      h("td", {}, name),
      h("td", { class: "wb-num" }, amount(curve?.final ?? null)),
      h("td", { class: "wb-num" }, between(curve?.final_low ?? null, curve?.final_high ?? null)),
      h("td", { class: "wb-num" }, left),
      h("td", {}, result.status || "–"),
    );
  }

  private describe(): void {
    const chosen = this.results.find(({ name }) => name === this.context.setting("result", ""));
    if (chosen) this.describeResult(chosen);
    else this.overview();
  }

  private describeResult(result: ComparedResult): void {
    const blocks: Block[] = [
      {
        form: "table",
        title: "Final values",
        columns: ["metric", "mean", "interval"],
        rows: result.metrics.map((m) => [m.metric, amount(m.final), between(m.final_low, m.final_high)]),
      },
    ];
    const tests = against(this.context.live("pairs") ?? this.context.state("pairs"), result.name);
    if (tests.length)
      blocks.push({
        form: "table",
        title: `Difference in ${this.context.state("metric")} from`,
        columns: ["result", "difference", "interval", "p, corrected", "pairs"],
        rows: tests.map((each) => [
          each.other,
          amount(each.difference),
          between(each.low, each.high),
          each.p === null ? "–" : String(Number(each.p.toPrecision(2))),
          String(each.pairs),
        ]),
      });
    for (const text of result.left_out) blocks.push({ form: "note", title: "", text: `Left out: ${text}.` });
    const subtitle = `${plural(result.compared, "seed")} compared${result.status ? `; ${result.status}` : ""}`;
    showDetails(this.context, this.detail, { title: result.name, kind: "clients", subtitle, blocks });
  }

  private overview(): void {
    const { results } = this;
    const percent = Math.round(100 * this.context.state("confidence"));
    const out = results.flatMap(({ name, left_out }) => left_out.map((why) => [name, why] as const));
    const blocks: Block[] = [
      {
        form: "note",
        title: "",
        text:
          `Bands and intervals contain the mean over seeds with ${percent} % confidence (Student). ` +
          "A result with a single seed has no band and no interval. Select a result to see its differences from the others.",
      },
    ];
    if (out.length)
      blocks.push({ form: "table", title: "Left out of means and tests", columns: ["result", "why"], rows: out });
    showDetails(this.context, this.detail, {
      title: "Runs",
      kind: "clients",
      subtitle: this.context.state("sentence"),
      blocks,
    });
  }
}

export const overlay: RenderView<"overlay"> = (host, context) => {
  new Overlay(host, context);
};
