// Any number of clients as a heat map, as bars or as a table; sorted, filtered, some of them pinned, one opened.
import { type Block, showDetails } from "../lib/details";
import { button, type Child, h, menu, type Option, replace } from "../lib/dom";
import { formatAs, formatCount } from "../lib/format";
import { consume } from "../lib/keyboard";
import { floats } from "../lib/model";
import { mean, range } from "../lib/scale";
import { split } from "../lib/split";
import type { ClientColumn, ClientsViewState } from "../lib/states";
import { copyText } from "../lib/take-along";
import { legend } from "../lib/theme";
import { type TreeTable, treeTable } from "../lib/tree-table";
import type { RenderView, ViewContext } from "../lib/view";
import { ClientCourse } from "./client-course";
import { ClientValues } from "./client-values";
import { ClientChart, wantsLog } from "./clients-chart";
import { clientDetails, clientName, timeColumn, timesText } from "./clients-data";

type Mode = "heat" | "bars" | "table";
type Sorting = "client" | "down" | "up";
const TESTS: Record<string, (a: number, b: number) => boolean> = {
  "≥": (a, b) => a >= b,
  "≤": (a, b) => a <= b,
  "=": (a, b) => a === b,
};
const FEW = 64;
const VALUES_SHARE = 0.35; // of the width for the chart, while the values of a client are read
const MEASURED = new Set(["measured", "simulated"]);
const COPIED = "Copied: paste it into a cell.";

/** A column, with its name in menus. */
interface NamedColumn extends ClientColumn {
  name?: string;
}

class ClientsPane {
  private readonly clients: ClientsViewState;
  private columns: readonly NamedColumn[];
  private values: Float32Array[];
  private followed: NamedColumn[] = [];
  private order: number[] = [];
  private mode: Mode;
  private metric = 0;
  private sorting: Sorting = "client";
  private field = 0;
  private test = "≥";
  private wanted: number | null = null;
  private table: TreeTable | null = null;
  private readonly chart: ClientChart;
  private readonly course: ClientCourse;
  private readonly opened: ClientValues;
  private readonly bound = h("input", {
    type: "number",
    step: "any",
    placeholder: "any",
    "aria-label": "Filter bound",
    class: "wb-short",
  });
  private readonly back = h("input", { type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Round" });
  private readonly which = h("span", {}, "last");
  private readonly rounds = h("label", { hidden: true }, "Round ", this.back, this.which);
  private readonly tools = h("div", { class: "wb-tools" });
  private readonly summary = h("p", { class: "wb-note wb-summary" });
  private readonly legendBox = h("span", { class: "wb-legendbox" });
  private tableEnd = new AbortController();
  private readonly place = h("div", { class: "wb-pane" });
  private readonly pins = h("div", { class: "wb-pins" });
  private readonly facts = h("div", {});
  private readonly valuesPlace = h("div", { hidden: true });

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"clients">,
  ) {
    this.clients = this.context.whole;
    this.columns = [...this.clients.columns];
    this.values = this.columns.map(({ key }) => context.array(`clients.${key}`));
    this.mode = this.clients.count <= FEW || this.clients.groups ? "bars" : "heat";
    if (this.clients.groups) this.mode = "heat";
    const { node, main, detail, lend } = split(context, "Details of the selected client", 0.6);
    this.chart = new ClientChart(context, (client) => this.choose(client));
    this.course = new ClientCourse(context);
    this.opened = new ClientValues(context, this.valuesPlace, (open) => lend(open ? VALUES_SHARE : null));
    main.append(this.tools, this.summary, this.place, this.pins);
    detail.append(this.facts, this.valuesPlace);
    host.append(node);
    this.bound.addEventListener("input", () => this.arrange());
    this.back.addEventListener("input", () => this.lookBack());
    this.take();
    this.preferTime();
    this.drawTools();
    this.arrange();
    this.follow();
    context.onSelection(() => this.follow());
    context.onLive(() => this.onLive());
  }

  private get column(): NamedColumn {
    return this.columns[this.metric];
  }
  private value = (client: number): number => this.values[this.metric]?.[client];
  private nameOf = (client: number): string => clientName(this.clients, client);
  private get pinned(): number[] {
    return this.context.setting<number[]>("pinned", []).filter((client) => client < this.clients.count);
  }

  /** Who is late is what is asked most; else the first column that tells clients apart. */
  private preferTime(): void {
    const varies = this.columns.map((_, i) => i).filter((i) => range(this.values[i])[1] > range(this.values[i])[0]);
    const time = timeColumn(this.columns);
    this.metric = varies.includes(time) ? time : (varies[0] ?? 0);
  }

  private drawTools(): void {
    const twice = (label: string) => this.columns.filter((each) => each.label === label).length > 1;
    const options = this.columns.map(
      (each, i): Option<number> => [i, each.name ?? (twice(each.label) ? `${each.label} (${each.kind})` : each.label)],
    );
    const again =
      <T>(put: (value: T) => void) =>
      (value: T) => {
        put(value);
        this.arrange();
      };
    const modes = menu<Mode>(
      "Show clients as",
      [
        ["heat", "heat map"],
        ["bars", "bars"],
        ["table", "table"],
      ],
      this.mode,
      again<Mode>((mode) => (this.mode = mode)),
    );
    const metric = menu(
      "Measure",
      options,
      this.metric,
      again<number>((i) => (this.metric = i)),
    );
    const sort = menu<Sorting>(
      "Sort by",
      [
        ["client", "client number"],
        ["down", "largest first"],
        ["up", "smallest first"],
      ],
      this.sorting,
      again<Sorting>((sorting) => (this.sorting = sorting)),
    );
    const field = menu(
      "Filter by",
      options,
      this.field,
      again<number>((i) => (this.field = i)),
    );
    const test = menu(
      "Filter comparison",
      Object.keys(TESTS).map((sign): Option<string> => [sign, sign]),
      this.test,
      again<string>((sign) => (this.test = sign)),
    );
    const go = h("input", {
      type: "number",
      min: 0,
      max: this.clients.count - 1,
      placeholder: "go to",
      "aria-label": "Go to client",
      class: "wb-short",
    });
    const jump = () => {
      const client = Math.min(Math.max(Math.round(Number(go.value)), 0), this.clients.count - 1);
      // Leaving the field says so once more: what is chosen already stays as it is, with the button that was pressed.
      if (go.value !== "" && client !== this.context.selection.client) this.choose(client);
    };
    go.addEventListener("change", jump);
    go.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      jump();
      consume(event);
    });
    const only = h("span", { class: "wb-row" }, "Only ", field, test, this.bound);
    replace(
      this.tools,
      h("label", {}, "Show as ", modes),
      h("label", {}, "Measure ", metric),
      h("label", {}, "Sort ", sort),
      only,
      h("label", {}, "Client ", go),
      this.rounds,
      this.legendBox,
    );
  }

  private choose(client: number): void {
    this.context.select({ client, stage: this.context.selection.stage ?? this.clients.stage });
  }

  private arrange(): void {
    const { count } = this.clients;
    this.order = Array.from({ length: count }, (_, client) => client);
    if (this.bound.value !== "") {
      const bound = Number(this.bound.value);
      this.order = this.order.filter((client) => TESTS[this.test](this.values[this.field][client], bound));
    }
    const sign = this.sorting === "down" ? -1 : 1;
    if (this.sorting !== "client") this.order.sort((a, b) => sign * (this.value(a) - this.value(b)) || a - b);
    this.summarize();
    this.draw();
  }

  private summarize(): void {
    if (!this.order.length) return replace(this.summary, "No client matches the filter.");
    const shown = this.order.map(this.value).filter(Number.isFinite);
    const [low, high] = range(shown);
    const { label, kind, unit } = this.column;
    const average = mean(shown);
    const most = this.order.find((client) => this.value(client) === high) ?? 0;
    const leader = button(this.nameOf(most), () => this.choose(most), { class: "wb-link" });
    const what = `${formatCount(this.order.length)} of ${formatCount(this.clients.count)} clients · ${label}${kind ? ` (${kind})` : ""}: `;
    const figures =
      high > low
        ? [
            `mean ${formatAs(unit, average)}, most ${formatAs(unit, high)} by `,
            leader,
            `, ${timesText(high / average)} the mean`,
          ]
        : [`the same for all, ${formatAs(unit, low)}`];
    const { sentence } = this.clients;
    replace(this.summary, what, figures, sentence ? `. ${sentence[0].toUpperCase()}${sentence.slice(1)}.` : "");
  }

  private draw(): void {
    const shown = this.order.map(this.value).filter(Number.isFinite);
    const [low, high] = range(shown);
    const log = wantsLog(shown);
    replace(
      this.legendBox,
      this.mode === "heat" && high > low
        ? legend(log ? "log scale" : "", formatAs(this.column.unit, low), formatAs(this.column.unit, high))
        : null,
    );
    this.tools.hidden = !this.columns.length;
    this.tableEnd.abort(); // of a table that is replaced nothing is to stay behind
    if (this.mode === "table") return this.drawTable();
    this.table = null;
    if (!this.chart.node.isConnected) replace(this.place, this.chart.node);
    const { groups } = this.clients;
    const row = groups && this.sorting === "client" && this.order.length === this.clients.count ? groups.size : null;
    this.chart.show({
      mode: this.mode,
      order: this.order,
      value: this.value,
      unit: this.column.unit,
      label: this.column.label,
      name: this.nameOf,
      row,
      pinned: new Set(this.pinned),
      log,
    });
  }

  private drawTable(): void {
    const { order, values, columns } = this;
    const measured = columns.some(({ kind }) => kind === "measured");
    this.tableEnd = new AbortController();
    this.table = treeTable({
      label: "Clients, table",
      parent: order.map(() => -1),
      title: "client",
      name: (i) => this.nameOf(order[i]),
      columns: columns.map((column, c) => ({
        key: column.key,
        title: `${column.label}${column.kind ? ` (${column.kind})` : ""}`,
        unit: column.unit,
        value: (i) => (Number.isFinite(values[c][order[i]]) ? values[c][order[i]] : null),
        full: range(values[c])[1] || undefined,
        width: `${Math.max(104, 34 + 7.2 * (column.label.length + (column.kind ? column.kind.length + 3 : 0)))}px`,
        lesser: measured && column.kind !== "measured",
      })),
      sort: this.sorting === "client" ? undefined : { key: this.column.key, descending: this.sorting === "down" },
      rowAttributes: (i) => ({ "data-client": String(order[i]) }),
      choose: (i) => this.choose(order[i]),
      signal: AbortSignal.any([this.context.signal, this.tableEnd.signal]),
    });
    replace(this.place, this.table.node);
    const at = order.indexOf(this.context.selection.client ?? -1);
    this.table.select(at >= 0 ? at : null);
  }

  private drawPins(): void {
    const list = this.pinned;
    if (!list.length) return replace(this.pins);
    const unpin = (client: number) =>
      button("×", () => this.pin(client), { "aria-label": `Unpin ${this.nameOf(client)}` });
    const rows = list.map((client) =>
      h(
        "tr",
        { "data-client": client },
        h(
          "td",
          {},
          button(this.nameOf(client), () => this.choose(client), { class: "wb-link" }),
        ),
        this.values.map((values, c) => h("td", { class: "wb-num" }, formatAs(this.columns[c].unit, values[client]))),
        h("td", {}, unpin(client)),
      ),
    );
    const head = h(
      "tr",
      {},
      h("th", {}, "pinned"),
      this.columns.map(({ label }) => h("th", { class: "wb-num" }, label)),
      h("th", {}, ""),
    );
    replace(this.pins, h("table", { "aria-label": "Pinned clients" }, h("thead", {}, head), h("tbody", {}, rows)));
  }

  private pin(client: number): void {
    const list = this.pinned;
    this.context.set("pinned", list.includes(client) ? list.filter((each) => each !== client) : [...list, client]);
    this.follow();
  }

  private follow(): void {
    const { client } = this.context.selection;
    this.drawPins();
    if (this.table) this.table.select(client === undefined ? null : this.order.indexOf(client));
    else this.draw();
    if (client === undefined || client >= this.clients.count) return this.overview();
    const shown = { ...this.clients, columns: this.columns };
    const made = clientDetails(shown, this.values, client);
    const jaxpr: Block[] = this.clients.jaxpr
      ? [
          {
            form: "code",
            title: "jaxpr of one client",
            folded: true,
            lines: this.clients.jaxpr.split("\n").map((line) => [null, line, false] as const),
          },
        ]
      : [];
    const pin = button(this.pinned.includes(client) ? "Unpin" : "Pin to compare", () => this.pin(client));
    const open =
      this.clients.opens && this.context.hasKernel
        ? button("Open its values", () => this.opened.open(client, this.nameOf(client)), { class: "wb-primary" })
        : null;
    const actions = h("div", { class: "wb-row wb-steps" }, open, pin);
    showDetails(this.context, this.facts, { ...made, blocks: [...made.blocks, ...jaxpr], extra: [this.course.node] });
    this.facts.querySelector("header")?.after(actions);
    this.course.show(client);
  }

  private overview(): void {
    const rows = this.columns.map((each, i): [string, string] => {
      const [low, high] = range(this.values[i]);
      return [
        each.label,
        low === high ? formatAs(each.unit, low) : `${formatAs(each.unit, low)} to ${formatAs(each.unit, high)}`,
      ];
    });
    const text = "Select a client: with the mouse, with the arrow keys and Enter, or by its number.";
    const blocks: Block[] = [
      { form: "facts", title: "", rows },
      { form: "note", title: "Look closer", text },
    ];
    showDetails(this.context, this.facts, {
      title: this.clients.placement || "Clients",
      kind: "clients",
      subtitle: "all clients",
      blocks,
      extra: this.howToMeasure(),
    });
  }

  /** Who is slow cannot be known before a round was measured; how to do that can. */
  private howToMeasure(): Child[] {
    const { measuring } = this.clients;
    if (!measuring || !this.context.hasKernel || this.columns.some(({ kind }) => MEASURED.has(kind))) return [];
    const insert = () => {
      if (!this.context.insertCell(measuring)) copyText(measuring, null, () => this.context.say(COPIED));
    };
    return [
      h("h3", {}, "Slow clients"),
      h(
        "p",
        { class: "wb-note" },
        "No round has been measured yet. This cell measures and shows the time of every client:",
      ),
      h("pre", { class: "wb-code", tabindex: 0 }, measuring),
      button("Insert as cell", insert),
    ];
  }

  /** The metrics of a run become columns of their own: those of the last round, or of the one that is looked back at. */
  private take(): void {
    const metrics = this.context.live("metrics") ?? [];
    const base = this.clients.columns.length;
    const { count } = this.clients;
    const before = this.followed.map(({ key }) => key).join();
    this.rounds.hidden = !metrics.length || !this.context.hasKernel;
    if (!metrics.length) return;
    const [first, last] = this.context.live("rounds") ?? [0, 0];
    const values = floats(this.context.live("values"));
    Object.assign(this.back, { min: String(first), max: String(last) });
    if (this.wanted === null) this.back.value = String(last);
    this.which.textContent = this.wanted === null ? `${last} (the last)` : String(this.wanted);
    this.followed = metrics.map(({ key, round }) => ({
      key,
      name: `${key}, by round`,
      label: `${key} in round ${this.wanted ?? round}`,
      unit: "number",
      kind: "measured",
    }));
    this.columns = [...this.clients.columns, ...this.followed];
    if (this.wanted === null)
      this.values = [
        ...this.values.slice(0, base),
        ...metrics.map((_, i) => values.subarray(i * count, (i + 1) * count)),
      ];
    if (before !== this.followed.map(({ key }) => key).join()) this.drawTools();
  }

  private onLive(): void {
    const base = this.clients.columns.length;
    const known = this.followed.length;
    this.take();
    const shows = [this.metric, this.field].some((i) => i >= base);
    if (this.wanted === null && (known !== this.followed.length || shows)) this.arrange();
    if (this.context.selection.client !== undefined) this.course.show(this.context.selection.client);
  }

  private lookBack(): void {
    this.wanted = Number(this.back.value) === Number(this.back.max) ? null : Number(this.back.value);
    this.take();
    const round = this.wanted;
    const show = () => {
      this.arrange();
      this.follow();
    };
    if (round === null) return show();
    this.context.request("clients_in_round", { round }).then(
      (found) => {
        if (round !== this.wanted) return;
        const nothing = new Float32Array(this.clients.count).fill(Number.NaN);
        const made = this.followed.map(({ key }) =>
          found[key] ? Float32Array.from(found[key], (each) => each ?? Number.NaN) : nothing,
        );
        this.values = [...this.values.slice(0, this.clients.columns.length), ...made];
        show();
      },
      () => {},
    );
  }
}

export const clients: RenderView<"clients"> = (host, context) => {
  const known = context.state("columns").length || context.live("metrics")?.length;
  if (context.state("count") && known) return void new ClientsPane(host, context);
  const empty = h("p", { class: "wb-note wb-scrolls" }, "This program has no per-client data.");
  host.append(empty);
  // A run that begins later brings columns.
  const begin = () => {
    if (!empty.isConnected || !context.state("count") || !context.live("metrics")?.length) return;
    empty.remove();
    new ClientsPane(host, context);
  };
  context.onLive(begin);
};
