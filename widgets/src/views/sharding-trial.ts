// What if arrays were sharded differently? Menus and sizes at once, collectives once the kernel has compiled it.

import { facts, unbroken } from "../lib/details";
import { button, type Child, h, menu, type Option, replace } from "../lib/dom";
import { asSentence, formatBytes, formatCount, formatSeconds, plural } from "../lib/format";
import { term } from "../lib/glossary";
import type { ShardingLeaf, TrialRow, TrialState } from "../lib/states";
import { takeAlong } from "../lib/take-along";
import type { ViewContext } from "../lib/view";
import {
  axisChoices,
  bytesPerDevice,
  candidates,
  copies,
  faults,
  groupOffers,
  placementCode,
  type Sizes,
  type Spec,
  sameSpec,
  shardShape,
  written,
} from "./sharding-data";

type Specs = Record<string, Spec>;

const WORDS = { added: "added", removed: "removed", more: "more bytes", less: "fewer bytes", same: "the same" };
const OFFERED = 4;
const LISTED = 3; // arrays that are listed at once; more fold away, so that what to do next stays in sight
export const change = (before: string, after: string) => (before === after ? after : `${before} → ${after}`);

export class Trial {
  readonly menus = h("div", { class: "wb-trial" });
  readonly desk = h("div", { class: "wb-desk wb-trialbox", role: "group", "aria-label": "What if: other shardings" });
  private readonly top = h("div", {});
  private readonly sentence = h("p", { class: "wb-strong", role: "status" }); // what is spoken must stay the same element
  private readonly bottom = h("div", {});
  private readonly leaves: readonly ShardingLeaf[];
  readonly sizes: Sizes;
  private leaf: ShardingLeaf | null = null;
  group: readonly ShardingLeaf[] | null = null;
  private unfolded = false;
  private waiting: boolean | undefined;

  constructor(private readonly context: ViewContext<"sharding">) {
    this.leaves = context.state("leaves");
    this.sizes = Object.fromEntries(context.state("axes"));
    this.desk.append(this.top, this.sentence, this.bottom);
    this.desk.hidden = !Object.keys(this.sizes).length;
    context.onSettings(() => this.draw());
    context.onLive(() => this.drawDesk());
    context.onSelection(() => this.drawDesk());
    this.drawDesk();
  }

  get specs(): Specs {
    return this.context.setting<Specs>("specs", {});
  }

  specOf(leaf: ShardingLeaf): Spec {
    return this.specs[leaf.path] ?? leaf.spec;
  }

  bytesOf(leaf: ShardingLeaf): number {
    return bytesPerDevice(leaf, this.specOf(leaf), this.sizes);
  }

  get state(): TrialState {
    return this.context.live("trial") ?? {};
  }

  show(leaf: ShardingLeaf): void {
    this.leaf = leaf;
    this.group = null;
    this.drawMenus();
  }

  /** Offers for all arrays of a part of the tree at once. */
  showGroup(leaves: readonly ShardingLeaf[]): void {
    this.group = leaves;
    this.drawMenus();
  }

  private put(leaf: ShardingLeaf, spec: Spec): void {
    const { [leaf.path]: _, ...others } = this.specs;
    this.context.set("specs", sameSpec(spec, leaf.spec) ? others : { ...others, [leaf.path]: spec });
  }

  private draw(): void {
    this.drawMenus();
    this.drawDesk();
  }

  private drawMenus(): void {
    if (this.group) return replace(this.menus, this.groupOffers(this.group));
    const { leaf, sizes } = this;
    const axes = Object.keys(sizes);
    if (!axes.length || !leaf?.shape.length) return replace(this.menus);
    const spec = this.specOf(leaf);
    const options = axisChoices(axes);
    const menus = leaf.shape.map((size, d) => {
      const words = options.map((chosen, i): Option<number> => [i, chosen.length ? chosen.join(" × ") : "not sharded"]);
      const present = options.findIndex((each) => JSON.stringify(each) === JSON.stringify(spec[d] ?? []));
      const choose = menu(`mesh axes of dimension ${d}`, words, present, (i) =>
        this.put(
          leaf,
          leaf.shape.map((_, at) => (at === d ? options[i] : (spec[at] ?? []))),
        ),
      );
      choose.dataset.dimension = String(d);
      return h("label", {}, `dimension ${d} (${formatCount(size)})`, choose);
    });
    const focused = (document.activeElement as HTMLElement | null)?.dataset?.dimension;
    const inside = this.menus.contains(document.activeElement);
    const moved = !sameSpec(spec, leaf.spec);
    replace(
      this.menus,
      h("h3", {}, "What if it were sharded differently?"),
      h("div", { class: "wb-menu" }, menus),
      this.effect(leaf, spec, moved),
      this.offers(leaf, spec),
      moved ? button("Reset", () => this.put(leaf, leaf.spec), { class: "wb-link" }) : null,
    );
    if (inside && focused !== undefined)
      this.menus.querySelector<HTMLElement>(`[data-dimension="${focused}"]`)?.focus();
  }

  private effect(leaf: ShardingLeaf, spec: Spec, moved: boolean): Child {
    const { sizes } = this;
    const wrong = moved ? faults(leaf, spec, sizes) : [];
    if (wrong.length) return wrong.map((text) => h("p", { class: "wb-note wb-wrong" }, text));
    const shape = (of: Spec) => `[${shardShape(leaf, of, sizes).join(",")}]`;
    const bytes = (of: Spec) => formatBytes(bytesPerDevice(leaf, of, sizes));
    const held = (of: Spec) => `${plural(copies(of, sizes), "device")} per shard`;
    return facts(this.context, [
      ["shard", change(shape(leaf.spec), shape(spec))],
      ["bytes per device", change(bytes(leaf.spec), bytes(spec))],
      ["replication", change(held(leaf.spec), held(spec))],
    ]);
  }

  private groupOffers(leaves: readonly ShardingLeaf[]): Child {
    const found = groupOffers(leaves, (leaf) => this.specOf(leaf), this.sizes);
    if (!found.length) return null;
    const item = ({ axis, changed, saved }: (typeof found)[number]) => {
      const take = () =>
        this.context.set("specs", {
          ...this.specs,
          ...Object.fromEntries(changed.map(({ leaf, spec }) => [leaf.path, spec])),
        });
      return h(
        "li",
        {},
        button("Try", take, { "aria-label": `Try all of it over ${axis}` }),
        h("code", {}, `"${axis}"`),
        `on ${plural(changed.length, "array")} saves ${formatBytes(saved)} on every device`,
      );
    };
    return [
      h("h3", {}, "What if all of it were sharded over one more axis?"),
      h("ul", { class: "wb-candidates" }, found.map(item)),
      h(
        "p",
        { class: "wb-note" },
        "Every matrix is sharded along its longest dimension that the axis divides; vectors are not changed.",
      ),
    ];
  }

  /** What one more axis would save, each tried with one click. */
  private offers(leaf: ShardingLeaf, spec: Spec): Child {
    const found = candidates(leaf, spec, this.sizes).filter(({ saved }) => saved > 0);
    if (!found.length) return null;
    const item = (each: (typeof found)[number]) =>
      h(
        "li",
        {},
        button("Try", () => this.put(leaf, each.spec), { "aria-label": `Try ${written(each.spec)}` }),
        h("code", {}, written(each.spec)),
        `saves ${formatBytes(each.saved)} on every device`,
      );
    return [
      h(
        "p",
        { class: "wb-note" },
        copies(spec, this.sizes) > 1
          ? `Each shard is on ${plural(copies(spec, this.sizes), "device")}. Shard it over one more axis:`
          : "Shard it over one more axis:",
      ),
      h("ul", { class: "wb-candidates" }, found.slice(0, OFFERED).map(item)),
    ];
  }

  private drawDesk(): void {
    const { state, specs } = this;
    const changed = this.leaves.filter(({ path }) => specs[path]);
    const wrong = changed.flatMap((leaf) =>
      faults(leaf, specs[leaf.path], this.sizes).map((text) => `${leaf.path}: ${text}`),
    );
    const focused = document.activeElement;
    const label = this.desk.contains(focused) ? focused?.textContent : null;
    const busy = state.status === "planning" || state.status === "compiling";
    const failed =
      state.status === "failed"
        ? h("p", { class: "wb-note wb-wrong", role: "alert" }, state.error?.message ?? "It failed.")
        : null;
    const stopped = state.status === "stopped" ? h("p", { class: "wb-note" }, "Stopped.") : null;
    replace(
      this.top,
      h("h3", {}, "Tried together"),
      this.basket(changed),
      wrong.map((text) => h("p", { class: "wb-note wb-wrong" }, text)),
      changed.length || state.status ? this.actions(changed, wrong.length > 0) : null,
      busy ? this.progress(state) : null,
      failed,
      stopped,
    );
    if (this.sentence.textContent !== (state.sentence ?? "")) this.sentence.textContent = state.sentence ?? "";
    replace(this.bottom, this.outcome(state));
    this.reveal(state, busy);
    if (label)
      [...this.desk.querySelectorAll<HTMLButtonElement>("button:not(:disabled)")]
        .find((each) => each.textContent === label)
        ?.focus();
    this.desk.setAttribute("aria-busy", String(busy));
  }

  /** Scrolls the details to the progress of a trial and to its answer, once each; the notebook stays where it is. */
  private reveal(state: TrialState, busy: boolean): void {
    const awaited = this.waiting;
    this.waiting = busy;
    if (awaited === busy || awaited === undefined) return;
    const to = busy ? this.top.lastElementChild : this.sentence;
    const detail = this.desk.closest<HTMLElement>(".wb-detail");
    if (!detail || !to || !(busy || state.status === "done")) return;
    const below = to.getBoundingClientRect().bottom - detail.getBoundingClientRect().bottom + 8;
    const above = to.getBoundingClientRect().top - detail.getBoundingClientRect().top - 8;
    if (!busy) detail.scrollTop += above;
    else if (below > 0) detail.scrollTop += below;
  }

  private basket(changed: ShardingLeaf[]): Child {
    if (!changed.length)
      return h(
        "p",
        { class: "wb-note" },
        "Nothing yet: choose other mesh axes for an array above. The cost of the change appears here before anything runs.",
      );
    const before = this.leaves.reduce((sum, leaf) => sum + bytesPerDevice(leaf, leaf.spec, this.sizes), 0);
    const after = this.leaves.reduce((sum, leaf) => sum + this.bytesOf(leaf), 0);
    const item = (leaf: ShardingLeaf) =>
      h(
        "li",
        {},
        h("code", {}, leaf.path),
        ` ${leaf.spec_text} → ${written(this.specs[leaf.path])} `,
        button("undo", () => this.put(leaf, leaf.spec), { class: "wb-link", "aria-label": `Undo ${leaf.path}` }),
      );
    const list = h("ul", { class: "wb-basket" }, changed.map(item));
    const undo = () => this.context.set("specs", {});
    const folded = () =>
      h(
        "details",
        { open: this.unfolded, ontoggle: (event: Event) => this.remember(event) },
        h("summary", {}, `${formatCount(changed.length)} arrays, one by one`),
        button("undo all", undo, { class: "wb-link" }),
        list,
      );
    return [
      changed.length > LISTED ? folded() : list,
      h("p", { class: "wb-note" }, `All arguments: ${change(formatBytes(before), formatBytes(after))} on a device.`),
      takeAlong(this.context, () =>
        placementCode(
          changed.map(({ path }) => ({ path, spec: this.specs[path] })),
          this.sizes,
        ),
      ),
    ];
  }

  private remember(event: Event): void {
    this.unfolded = (event.target as HTMLDetailsElement).open;
  }

  private actions(changed: ShardingLeaf[], wrong: boolean): HTMLElement {
    if (!this.context.state("can_try"))
      return h(
        "p",
        { class: "wb-note" },
        'To see collectives too, open this view with the program: wb.show(fn, view="sharding")(*args). Sizes need no program.',
      );
    const off = !changed.length || wrong;
    const attempt = (compiled: boolean) => () => {
      const specs = Object.fromEntries(changed.map(({ path }) => [path, this.specs[path]]));
      this.context.request("what_if", { specs, compiled }).catch(() => {});
    };
    return h(
      "div",
      { class: "wb-row" },
      button("Compile and compare", attempt(true), { class: "wb-primary", disabled: off }),
      button("Plan only", attempt(false), { disabled: off }),
      h("span", { class: "wb-note" }, "Nothing runs; the kernel stays free."),
    );
  }

  private progress(state: TrialState): HTMLElement {
    const stop = () => this.context.request("stop_work", { work: "trial" }).catch(() => {});
    return h(
      "div",
      { class: "wb-row" },
      h("span", { class: "wb-wheel", "aria-hidden": "true" }),
      h("span", {}, `${state.phase} … ${formatSeconds(state.seconds ?? 0)}`),
      button("Stop", stop),
    );
  }

  private outcome(state: TrialState): Child {
    if (!state.status) return null;
    const how =
      state.how === "compiled"
        ? "in the compiled program"
        : "as planned by Shardy: each place in the program counts once, even in a loop";
    const pairs = state.amounts?.map(([name, before, after]) => [
      h("dt", {}, name),
      h("dd", {}, before === after ? `${after}, the same` : `${before} → ${after}`),
    ]);
    return [
      state.rows ? h("p", { class: "wb-note" }, `Collectives of one call, ${how}.`) : null,
      state.rows ? this.table(state.rows) : null,
      pairs?.length ? h("dl", { class: "wb-facts wb-amounts" }, pairs) : null,
      state.notes?.length ? h("p", { class: "wb-note" }, state.notes.map(asSentence).join(" ")) : null,
    ];
  }

  private table(rows: readonly TrialRow[]): HTMLElement {
    if (!rows.length) return h("p", { class: "wb-note" }, "No collectives, before or after.");
    const staged = new Set(rows.map(({ stage }) => stage).filter((each) => each !== null)).size > 1;
    const titles = ["", "collective", "payload", "mesh axis", "runs", "line", ...(staged ? ["stage"] : [])];
    const head = titles.map((title) =>
      h("th", { scope: "col" }, title ? term(this.context, title) : h("span", { class: "wb-hidden" }, "change")),
    );
    const line = (row: TrialRow) => {
      const choose = () => this.context.select({ stage: row.stage, axis: row.axes[0] ?? null, line: row.line });
      const sign = h(
        "span",
        { class: `wb-change wb-change-${row.change}` },
        h("span", { "aria-hidden": "true" }, row.sign),
        " ",
        WORDS[row.change],
      );
      const cells = [
        sign,
        button(row.kind, choose, { class: "wb-link" }),
        change(...row.bytes),
        row.axes.join(" × ") || "no mesh axis",
        change(...row.runs),
        unbroken(row.source),
        ...(staged ? [row.stage ? `${row.stage} ${row.stage_name}` : "not in a stage"] : []),
      ];
      const chosen = row.stage && row.stage === this.context.selection.stage;
      return h(
        "tr",
        { "data-change": row.change, class: chosen ? "wb-selected" : "" },
        cells.map((cell) => h("td", {}, cell)),
      );
    };
    const label = "Collectives before and after";
    const table = h(
      "table",
      { "aria-label": label },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.map(line)),
    );
    return h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": `${label}, table` }, table);
  }
}
