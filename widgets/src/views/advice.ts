// Findings about the program, the most important first: what to change, why, what it gains, and where it is.
import { onReport, reportOf } from "../lib/badges";
import { type Block, blockOf, codeWords } from "../lib/details";
import { button, type Child, h, replace } from "../lib/dom";
import { asSentence, formatCount } from "../lib/format";
import { rove } from "../lib/keyboard";
import { split } from "../lib/split";
import type { AdviceReport, Finding, Gain } from "../lib/states";
import { takeAlong } from "../lib/take-along";
import type { RenderView, ViewContext } from "../lib/view";
import { ShardingSearch } from "./advice-search";

const MOST_LINKS = 8;
const NOT_ASKED = "No advice had been requested when this page was saved, and a request needs a kernel.";
const WORSE = 0.05; // a share from which a change's price is named next to its gain
const NOT_VERIFIED = "The change is inside the program, so its gain could not be verified from outside.";
const NOT_YET = "The gain has not been verified.";
class Advice {
  private readonly main: HTMLElement;
  private readonly detail: HTMLElement;
  private readonly list = h("div", { class: "wb-findings", role: "listbox", "aria-label": "Findings" });
  private readonly sentence = h("p", { class: "wb-note" });
  private readonly status = h("span", { role: "status" });
  private readonly start: HTMLButtonElement;
  private readonly stop: HTMLButtonElement;
  private focusOn: ((item: HTMLElement | undefined) => void) | null = null;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"advice">,
  ) {
    const { node, main, detail } = split(context, "Details of the finding", 0.42);
    this.main = main;
    this.detail = detail;
    this.start = button("Find advice", () => this.ask("advise"), { class: "wb-primary" });
    this.stop = button("Stop", () => this.ask("stop_work", { work: "advice" }));
    const can = context.state("can_advise") && context.hasKernel;
    main.append(
      h("div", { class: "wb-tools" }, can ? [this.start, this.stop] : null, this.status),
      h("div", { class: "wb-scrolls" }, this.sentence, this.list),
    );
    host.append(node);
    context.onLive(() => this.followJob());
    context.onSettings(() => this.show());
    if (!reportOf(context)) this.invite();
    onReport(context, (report) => this.fill(report));
    this.followJob();
  }

  private ask(name: "advise" | "stop_work", payload: object = {}): void {
    this.context.request(name, payload).catch(() => {});
  }

  private followJob(): void {
    const job = this.context.live("job");
    const running = job?.status === "running";
    if (this.start.disabled && !running) this.show();
    this.start.disabled = running;
    this.start.textContent = reportOf(this.context) ? "Find again" : "Find advice";
    this.stop.hidden = !running;
    this.main.setAttribute("aria-busy", String(running));
    if (running) this.status.textContent = `${job.phase}, ${job.seconds.toFixed(0)} s`;
    else if (job?.error) this.status.textContent = `Failed: ${job.error.message}`;
    else this.status.textContent = job?.status === "stopped" ? "Stopped: unverified gains are estimates" : "";
  }

  private fill(report: AdviceReport | undefined): void {
    if (!report) return this.invite();
    this.sentence.textContent = report.sentence;
    const items = report.findings.map((finding) => this.item(finding));
    replace(this.list, items);
    this.list.hidden = !items.length;
    this.focusOn = rove<HTMLElement>(this.list, {
      items: () => [...this.list.querySelectorAll<HTMLElement>("[role=option]")],
      choose: (item) => this.choose(Number(item.dataset.finding)),
    });
    this.show();
  }

  private invite(): void {
    const can = this.context.state("can_advise");
    const text =
      "Looks for sharding, memory, precision and communication that can be improved. If the program itself is available, " +
      "changes are compiled to verify their gains: this takes about as long as a few compilations, and can be stopped.";
    this.sentence.textContent = this.context.state("missing") ?? text;
    this.list.hidden = true;
    const asked = this.context.hasKernel ? "No advice has been requested yet." : NOT_ASKED;
    const rules = this.context.state("rules");
    const list = h(
      "ul",
      { class: "wb-evidence" },
      rules.map((rule) => h("li", {}, codeWords(rule))),
    );
    const looks = rules.length ? [h("h3", {}, `What ${formatCount(rules.length)} rules look for`), list] : null;
    replace(this.detail, can ? [h("p", { class: "wb-note" }, asked), looks] : null);
  }

  private item(finding: Finding): HTMLElement {
    const gain = finding.gain ? gainChip(finding.gain, finding.compared) : null;
    const made = h(
      "div",
      { role: "option", class: "wb-findingitem", "data-finding": finding.number, tabindex: -1 },
      h("span", { class: "wb-findingrank", "aria-hidden": "true" }, finding.number + 1),
      h(
        "span",
        { class: "wb-findingtext" },
        h("b", {}, codeWords(finding.title)),
        h("span", { class: "wb-row" }, gain, places(finding)),
      ),
    );
    made.addEventListener("click", () => this.choose(finding.number));
    return made;
  }

  private choose(number: number): void {
    const finding = reportOf(this.context)?.findings[number];
    if (!finding) return;
    this.context.set("finding", number);
    this.select(finding);
  }

  /** What the finding is about, in every view. */
  private select(finding: Finding): void {
    this.context.select({
      node: finding.nodes.length ? String(finding.nodes[0]) : null,
      instruction: finding.instructions[0] ?? null,
      line: finding.lines[0]?.line ?? null,
      leaf: finding.leaves[0] ?? null,
      axis: finding.axes[0] ?? null,
    });
  }

  private show(): void {
    const report = reportOf(this.context);
    if (!report) return;
    const number = Math.min(this.context.setting("finding", 0), report.findings.length - 1);
    for (const item of this.list.querySelectorAll<HTMLElement>("[role=option]")) {
      const chosen = Number(item.dataset.finding) === number;
      item.setAttribute("aria-selected", String(chosen));
      item.classList.toggle("wb-selected", chosen);
      item.tabIndex = chosen ? 0 : -1;
      if (chosen && this.list.contains(document.activeElement)) this.focusOn?.(item);
    }
    const finding = report.findings[number];
    if (finding) replace(this.detail, this.describe(finding), this.footer(report));
    else replace(this.detail, h("h2", {}, "No changes found"), this.footer(report));
  }

  private describe(finding: Finding): Child {
    const { context } = this;
    const job = context.live("job");
    const unverified = !job || job.status === "done" ? NOT_VERIFIED : NOT_YET;
    const shown = finding.code ? h("pre", { class: "wb-code", tabindex: 0 }, finding.code) : null;
    const figures: [string, string][] = [
      ["size", finding.bytes ?? ""],
      ["seconds", finding.seconds ?? ""],
      ["rule", finding.rule],
    ];
    const facts: Block = { form: "facts", title: "", rows: figures.filter(([, text]) => text) };
    return [
      h("header", {}, h("h2", {}, codeWords(finding.title))),
      h("p", {}, finding.gain ? gainChip(finding.gain, finding.compared) : h("span", { class: "wb-note" }, unverified)),
      h("h3", {}, "Why"),
      h("p", {}, codeWords(finding.why)),
      h("h3", {}, "Change"),
      h("p", {}, codeWords(finding.change)),
      shown ? [shown, takeAlong(context, () => finding.code, shown)] : null,
      finding.compared.length ? blockOf(context, comparison(finding.compared)) : null,
      h("h3", {}, "Evidence"),
      h(
        "ul",
        { class: "wb-evidence" },
        finding.evidence.map((each) => h("li", {}, codeWords(each))),
      ),
      this.links(finding),
      blockOf(context, facts),
    ];
  }

  /** Each leads to its view, with the thing selected there. */
  private links(finding: Finding): Child {
    const { context } = this;
    const go = (view: string, patch: Parameters<ViewContext["select"]>[0]) => () => {
      context.select(patch);
      context.open(view);
    };
    const link = (text: string, act: () => void) => button(text, act, { class: "wb-link" });
    const made = [
      ...finding.nodes.slice(0, MOST_LINKS).map((node) => {
        const name = context.of("operations")?.state("names")[node] ?? `row ${node}`;
        return link(`${name} in the call tree`, go("operations", { node: String(node), instruction: null }));
      }),
      ...finding.lines
        .slice(0, MOST_LINKS)
        .map(({ line, source }) => link(source, go("hlo", { line, instruction: null }))),
      ...finding.instructions.slice(0, MOST_LINKS).map((name) => link(name, go("hlo", { instruction: name }))),
      ...finding.leaves.slice(0, MOST_LINKS).map((leaf) => link(leaf, go("sharding", { leaf }))),
      ...finding.axes.slice(0, MOST_LINKS).map((axis) => link(`mesh axis ${axis}`, go("mesh", { axis }))),
    ];
    return made.length ? [h("h3", {}, "Where"), h("div", { class: "wb-row wb-links" }, made)] : null;
  }

  private footer(report: AdviceReport): Child {
    return h(
      "details",
      {},
      h("summary", {}, `${report.checked.length} rules were checked`),
      h("p", { class: "wb-note" }, report.checked.join(" · ")),
      report.notes.map((note) => h("p", { class: "wb-note" }, asSentence(note))),
    );
  }
}

/** What a change makes worse, in words: "peak memory +79 %". */
export function priceOf(gain: Gain, compared: readonly Gain[]): string {
  return compared
    .filter(({ quantity, saved_share }) => quantity !== gain.quantity && saved_share < -WORSE)
    .map(({ quantity, saved_share }) => `${quantity} +${(-100 * saved_share).toFixed(0)} %`)
    .join(", ");
}

function gainChip(gain: Gain, compared: readonly Gain[]): HTMLElement {
  if (!gain.verified && gain.before === gain.after) return h("span", { class: "wb-note" }, gain.how);
  const price = priceOf(gain, compared);
  const look = gain.verified && !price ? "good" : "plain";
  const known = `${gain.quantity} ${gain.before} → ${gain.after}, ${gain.verified ? "verified" : "estimated"}`;
  const text = price ? `${known}; costs ${price}` : known;
  return h("span", { class: `wb-figure wb-look-${look}`, "data-tip": gain.how }, text);
}

/** The first place of a finding, and how many there are. */
export function places(finding: Pick<Finding, "lines" | "leaves" | "instructions">): string {
  const all = [finding.lines.map(({ source }) => source), finding.leaves, finding.instructions].find(
    (list) => list.length,
  );
  if (!all) return "";
  return all.length > 1 ? `${all[0]} +${all.length - 1}` : all[0];
}

function comparison(compared: readonly Gain[]): Block {
  const share = ({ saved_share }: Gain) => `${saved_share > 0 ? "−" : "+"}${Math.abs(100 * saved_share).toFixed(0)} %`;
  return {
    form: "table",
    title: "Before and after, compiled",
    columns: ["figure", "before", "after", "difference"],
    rows: compared.map((gain) => [
      gain.quantity,
      gain.before,
      gain.after,
      gain.saved_share === 0 ? "none" : share(gain),
    ]),
  };
}

type Part = "findings" | "shardings";
const PARTS: readonly (readonly [Part, string])[] = [
  ["findings", "Findings"],
  ["shardings", "Search for shardings"],
];

export const advice: RenderView<"advice"> = (host, context) => {
  const searches = (context.hasKernel && context.state("can_search")) || context.live("search") !== undefined;
  if (!searches) {
    new Advice(host, context);
    return;
  }
  const panes = PARTS.map(([part]) => h("div", { class: "wb-advicepart", "data-part": part }));
  const buttons = PARTS.map(([part, title]) => button(title, () => context.set("part", part)));
  const show = () => {
    const part = context.setting<Part>("part", "findings");
    PARTS.forEach(([key], i) => {
      panes[i].hidden = key !== part;
      buttons[i].setAttribute("aria-pressed", String(key === part));
    });
  };
  host.append(
    h("div", { class: "wb-tools", role: "group", "aria-label": "What to look for" }, buttons),
    panes[0],
    panes[1],
  );
  new Advice(panes[0], context);
  new ShardingSearch(panes[1], context);
  context.onSettings(show);
  show();
};
