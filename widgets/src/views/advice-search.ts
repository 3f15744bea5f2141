// Shardings that a search found: which specs, what they cost, and a lock for those that shall stay.
import { codeWords } from "../lib/details";
import { button, type Child, h, replace } from "../lib/dom";
import { asSentence } from "../lib/format";
import { rove } from "../lib/keyboard";
import { split } from "../lib/split";
import type { SearchState, ShardingChoice } from "../lib/states";
import { takeAlong } from "../lib/take-along";
import type { ViewContext } from "../lib/view";

type Axes = string[][];
const INVITE =
  "Which PartitionSpecs should the arguments have on this mesh? The search compares hundreds of choices, and takes " +
  "about a minute at most. The program does not run.";
const STEPS = [
  "Arguments are grouped: a parameter has the same spec in all layers, and its optimizer state follows it.",
  "Each choice is planned: Shardy propagates it, and a cost model predicts seconds, memory and bytes sent.",
  "The best few are compiled and ranked again. Choices that do not fit in memory are ranked last.",
];
const AFTERWARDS =
  "The table fills while the search runs; Stop keeps the results so far. Then you can insert the code for a choice " +
  "as a new cell, or lock some of its specs and search the rest.";
const NOT_SEARCHED = "No search had run when this page was saved, and a search needs a kernel.";

/** Whether a lock holds the spec that a choice gives to an argument; replicated is no axes at all. */
export function isLocked(choice: ShardingChoice, name: string, locked: Record<string, Axes>): boolean {
  return name in locked && JSON.stringify(locked[name]) === JSON.stringify(choice.axes[name] ?? []);
}

/** Bytes that one device sends, by mesh axes, in one line. */
export function sentText(sent: Record<string, string>): string {
  const parts = Object.entries(sent).map(([axis, amount]) => `${amount} over ${axis}`);
  return parts.join(", ") || "nothing";
}

export class ShardingSearch {
  private readonly main: HTMLElement;
  private readonly detail: HTMLElement;
  private readonly table = h("div", { class: "wb-scroll" });
  private readonly sentence = h("p", { class: "wb-note" });
  private readonly status = h("span", { role: "status" });
  private readonly start: HTMLButtonElement;
  private readonly stop: HTMLButtonElement;
  private readonly compiled = h("input", { type: "checkbox", checked: true });
  private seen: string | undefined | null = null; // not filled yet

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"advice">,
  ) {
    const { node, main, detail } = split(context, "Details of the shardings", 0.42);
    this.main = main;
    this.detail = detail;
    this.start = button("Search shardings", () => this.search(), { class: "wb-primary" });
    this.stop = button("Stop", () => this.ask("stop_work", { work: "search" }));
    const compiles = h("label", { class: "wb-row" }, this.compiled, "compile the best");
    main.append(
      h("div", { class: "wb-tools" }, context.hasKernel ? [this.start, this.stop, compiles] : null, this.status),
      h("div", { class: "wb-scrolls" }, this.sentence, this.table),
    );
    host.append(node);
    context.onLive(() => this.follow());
    context.onSettings(() => this.mark());
    this.follow();
  }

  private get found(): SearchState | undefined {
    return this.context.live("search");
  }

  private get locked(): Record<string, Axes> {
    return this.context.setting("locked", {});
  }

  private get chosen(): ShardingChoice | undefined {
    const rows = this.found?.rows ?? [];
    return rows[Math.min(this.context.setting("choice", 0), rows.length - 1)];
  }

  private ask(name: "search_shardings" | "stop_work", payload: object = {}): void {
    this.context.request(name, payload).catch(() => {});
  }

  private search(): void {
    this.ask("search_shardings", { lock: this.locked, compiled: this.compiled.checked });
  }

  private follow(): void {
    const job = this.context.live("search_job");
    const running = job?.status === "running";
    this.start.disabled = running;
    this.stop.hidden = !running;
    this.main.setAttribute("aria-busy", String(running));
    if (running) this.status.textContent = `${job.phase}, ${job.seconds.toFixed(0)} s`;
    else if (job?.error) this.status.textContent = `Failed: ${job.error.message}`;
    else this.status.textContent = job?.status === "stopped" ? "Stopped: these are the best choices so far" : "";
    const now = JSON.stringify(this.found);
    if (now === this.seen) return this.mark();
    this.seen = now;
    this.fill();
  }

  private fill(): void {
    const { found } = this;
    this.sentence.textContent = found?.sentence ?? INVITE;
    if (!found) {
      replace(this.table);
      replace(this.detail, this.context.hasKernel ? this.invitation() : h("p", { class: "wb-note" }, NOT_SEARCHED));
      return;
    }
    const chunked = found.rows.some(({ chunk }) => chunk !== null);
    const heads = ["choice", "how", ...(chunked ? ["chunk"] : []), "seconds", "peak", "sent by one device"];
    const head = heads.map((name) => h("th", { scope: "col" }, name));
    const rows = found.rows.map((row, number) => this.row(row, number, chunked));
    const hows = new Set(found.rows.map(({ how }) => how));
    const partly = hows.size > 1 && hows.has("compiled");
    replace(
      this.table,
      h(
        "table",
        { class: "wb-choices", "aria-label": "Shardings" },
        h("thead", {}, h("tr", {}, head)),
        h("tbody", {}, rows),
      ),
      h("p", { class: "wb-note" }, `★ no other ${partly ? "compiled " : ""}choice is both faster and smaller`),
      found.notes.map((note) => h("p", { class: "wb-note" }, asSentence(note))),
    );
    rove<HTMLElement>(this.table, { items: () => this.rows(), choose: (row) => this.choose(Number(row.dataset.row)) });
    this.mark();
  }

  private invitation(): Child {
    const steps = STEPS.map((step) => h("li", {}, step));
    return [
      h("header", {}, h("h2", {}, "How the search works")),
      h("ol", { class: "wb-evidence" }, steps),
      h("p", {}, AFTERWARDS),
    ];
  }

  private rows(): HTMLElement[] {
    return [...this.table.querySelectorAll<HTMLElement>("tr[data-row]")];
  }

  private row(each: ShardingChoice, number: number, chunked: boolean): HTMLElement {
    const cells: Child[] = [
      h("th", { scope: "row" }, each.pareto ? "★ " : "", each.name),
      h("td", {}, each.how),
      chunked ? h("td", { class: "wb-num" }, each.chunk ?? "all") : null,
      h("td", { class: "wb-num" }, each.seconds ?? "unknown"),
      h("td", { class: "wb-num" }, each.peak ?? "unknown", each.fits === false ? " (does not fit)" : ""),
      h("td", {}, sentText(each.sent)),
    ];
    return h("tr", { "data-row": number, onclick: () => this.choose(number) }, cells);
  }

  private choose(number: number): void {
    this.context.set("choice", number);
  }

  private mark(): void {
    const { found, chosen } = this;
    if (!found || !chosen) return;
    for (const row of this.rows()) {
      const is = found.rows[Number(row.dataset.row)] === chosen;
      row.classList.toggle("wb-selected", is);
      row.setAttribute("aria-current", String(is));
    }
    const focused = document.activeElement;
    const held = focused instanceof HTMLInputElement && this.detail.contains(focused) ? focused.name : null;
    replace(this.detail, this.describe(found, chosen));
    if (held !== null) this.detail.querySelector<HTMLInputElement>(`input[name="${CSS.escape(held)}"]`)?.focus();
  }

  private describe(found: SearchState, choice: ShardingChoice): Child {
    const code = h("pre", { class: "wb-code", tabindex: 0 }, choice.code);
    const count = Object.keys(this.locked).length;
    const words = count ? `Search with ${count} locked` : "Lock a spec to search the rest";
    const again = button(words, () => this.search(), { disabled: !count });
    return [
      h("header", {}, h("h2", {}, choice.name)),
      h("p", { class: "wb-note" }, codeWords("Arguments that are not listed have `P()`: replicated on every device.")),
      h(
        "table",
        { "aria-label": "Specs" },
        h("thead", {}, h("tr", {}, h("th", {}, "argument"), h("th", {}, "spec"), h("th", {}, "lock"))),
        h(
          "tbody",
          {},
          found.groups.map((name) => this.lock(name, choice)),
        ),
      ),
      this.context.hasKernel ? h("p", {}, again) : null,
      h("h3", {}, "Code"),
      code,
      takeAlong(this.context, () => choice.code, code),
    ];
  }

  private lock(name: string, choice: ShardingChoice): HTMLElement {
    const change = (event: Event) => {
      const { [name]: _, ...others } = this.locked;
      const on = (event.target as HTMLInputElement).checked;
      this.context.set("locked", on ? { ...others, [name]: choice.axes[name] ?? [] } : others);
    };
    const box = h("input", {
      type: "checkbox",
      name,
      checked: isLocked(choice, name, this.locked),
      "aria-label": `Lock ${name}`,
      onchange: change,
    });
    return h(
      "tr",
      {},
      h("td", {}, h("code", {}, name)),
      h("td", {}, h("code", {}, choice.specs[name] ?? "P()")),
      h("td", {}, box),
    );
  }
}
