// Why each axis is sharded: values as rows, and arrows that appear in the order in which Shardy decided.

import { type Block, showDetails } from "../lib/details";
import { button, type Child, h, menu, type Option, pictureFrom, replace } from "../lib/dom";
import { asSentence } from "../lib/format";
import { clamp, consume, rove } from "../lib/keyboard";
import { wordsOf } from "../lib/matches";
import type { PlannedValue, PropagationState, ShardingLeaf } from "../lib/states";
import { wantsStill } from "../lib/theme";
import type { RenderView, ViewContext } from "../lib/view";

/** An axis that arrived at a value: dimensions, frame, the value that it came from, the sentence. */
export type Arrival = PropagationState["why"][string][number];
export interface Reason {
  sentence: string;
  value: string;
  frame: number;
}

const PER_STEP = 900; // milliseconds between two frames at normal speed
const START = 200;
const MOST_REASONS = 40;
const LONGEST_CHAIN = 400;
const NAMED = 4;
const SPEEDS: readonly Option<number>[] = [
  [0.5, "½ ×"],
  [1, "1 ×"],
  [3, "3 ×"],
];
const KEYS =
  "Keys: space plays and pauses, ← and → step, Home and End jump; ↑ and ↓ walk through the values, Enter asks why.";
const HOW =
  "Every row is a value of the program, in order; a box is a dimension, a coloured tag a mesh axis that shards it. " +
  "Play shows how Shardy carried each axis from value to value. Select a row to ask why.";

/** The reasons of one axis of a value, back to where the axis entered the program. */
export function reasons(why: PropagationState["why"], name: string, axis: string): Reason[] {
  const chain: Reason[] = [];
  let at: string | null = name;
  while (at && chain.length < LONGEST_CHAIN) {
    const found: Arrival | undefined = (why[at] ?? []).find(([each]) => each === axis);
    if (!found) break;
    chain.push({ sentence: found[4], value: at, frame: found[2] });
    at = found[3];
  }
  return chain;
}

/** What happened in one frame, in a sentence; `titleOf` names values. */
export function sentenceOf({ why }: PropagationState, frame: number, titleOf: (name: string) => string): string {
  const arrived = Object.entries(why).flatMap(([name, all]) =>
    all.filter((arrival) => arrival[2] === frame).map(([axis, , , , text]) => ({ name, axis, text })),
  );
  if (frame === 0) {
    const named = arrived.slice(0, NAMED).map(({ name, axis }) => `${axis} on ${titleOf(name)}`);
    const more = arrived.length > NAMED ? ` and ${arrived.length - NAMED} more` : "";
    return `Before propagation, the program specifies: ${named.join(", ")}${more}.`;
  }
  const [first] = arrived;
  const more = arrived.length > 1 ? ` (and ${arrived.length - 1} more in this step)` : "";
  return `${first?.axis ?? ""}: ${first?.text ?? ""}${more}`;
}

/** Why an array of the arguments lies whole on its devices, as far as propagation tells. */
export function wholeBecause({
  spec_text: spec,
  shape,
  devices,
}: Pick<ShardingLeaf, "spec_text" | "shape" | "devices">): string {
  const held = devices.length > 1 ? `Each of ${devices.length} devices stores the whole array. ` : "";
  if (!shape.length) return `${held}It is a single number: there is nothing to shard.`;
  return (
    `${held}Its spec is ${spec}, and no operation that reads it propagates a mesh axis back to it: Shardy propagates ` +
    "axes from sharded values, and never shards a value without such an axis. Pass a spec for it: the view " +
    "'Arrays and what if' lists candidates and the bytes that each saves."
  );
}

class Player {
  private readonly score = h("div", { class: "wb-wide wb-scorebox", tabindex: -1 });
  private readonly panel = h("aside", {
    class: "wb-panel",
    "aria-live": "polite",
    "aria-label": "Why the chosen value is sharded",
  });
  private readonly told = h("p", { class: "wb-note wb-said", role: "status", "aria-live": "polite" });
  private readonly counter = h("output", { class: "wb-counter" });
  private readonly slider: HTMLInputElement;
  private readonly playButton: HTMLButtonElement;
  private readonly pages = h("select", { "aria-label": "Values shown" });
  private readonly axis = h("select", { "aria-label": "Mesh axis shown" });
  private readonly controls: HTMLElement;
  private readonly keys = h("p", { class: "wb-note" }, KEYS);
  private speed = 1;
  private frame = 0;
  private last = 0;
  private first = 0;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private rows: SVGElement[] = [];
  private moving: SVGElement[] = [];
  private chosen: string | null = null;
  private leaf: string | undefined;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext,
    private readonly read: () => PropagationState,
    private readonly leaves: readonly ShardingLeaf[],
  ) {
    this.slider = h("input", { type: "range", min: 0, value: 0, "aria-label": "Step of the propagation" });
    this.slider.addEventListener("input", () => this.jump(Number(this.slider.value)));
    this.playButton = button("", () => (this.timer ? this.stop() : this.play()), { class: "wb-play" });
    this.pages.addEventListener("change", () => this.turn(Number(this.pages.value)));
    this.axis.addEventListener("change", () => context.select({ axis: this.axis.value || null }));
    this.controls = this.makeControls();
    host.append(
      this.controls,
      this.told,
      h("div", { class: "wb-split" }, h("div", { class: "wb-pictures" }, this.score), this.panel),
      this.keys,
    );
    context.signal.addEventListener("abort", () => this.stop());
    context.onSelection(() => {
      this.follow();
      this.go(this.frame, true);
    });
    this.build();
  }

  private makeControls(): HTMLElement {
    const step = (label: string, sign: string, to: () => number) =>
      button(sign, () => this.jump(to()), { "aria-label": label, "data-tip": label });
    const speed = menu("Speed", SPEEDS, 1, (value) => {
      this.speed = value;
    });
    const made = h(
      "div",
      { class: "wb-tools wb-player", role: "group", "aria-label": "Play the propagation" },
      step("First step", "|‹", () => 0),
      step("Step back", "‹", () => this.frame - 1),
      this.playButton,
      step("Step forward", "›", () => this.frame + 1),
      step("Last step", "›|", () => this.last),
      this.slider,
      this.counter,
      h("label", {}, "speed ", speed),
      h("label", {}, "axis ", this.axis),
      this.pages,
      this.search(),
    );
    made.addEventListener("keydown", (event) => this.onKey(event));
    return made;
  }

  private search(): HTMLElement {
    const box = h("input", {
      type: "search",
      class: "wb-search",
      placeholder: "find a value",
      "aria-label": "Find a value; Enter goes to the next",
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.find(box.value);
      event.stopPropagation();
    });
    return box;
  }

  private onKey(event: KeyboardEvent): void {
    const target = event.target as Element;
    if (target.closest("select")) return;
    const to = { ArrowRight: this.frame + 1, ArrowLeft: this.frame - 1, Home: 0, End: this.last }[event.key];
    if (to !== undefined) this.jump(to);
    else if (event.key === " " && target.tagName !== "BUTTON") this.timer ? this.stop() : this.play();
    else return;
    consume(event);
  }

  /** What is shown has changed: everything at once; Play begins at the beginning. */
  build(): void {
    const { values, steps, axes, page, svg, sentence, notes } = this.read();
    this.last = steps.length;
    this.slider.max = String(this.last);
    replace(
      this.axis,
      h("option", { value: "" }, "all"),
      axes.map((each) => h("option", { value: each }, each)),
    );
    const starts = Array.from({ length: Math.ceil(values.length / page) }, (_, i) => i * page);
    const words = (at: number) => `values ${at + 1}–${Math.min(at + page, values.length)} of ${values.length}`;
    replace(
      this.pages,
      starts.map((at) => h("option", { value: at }, words(at))),
    );
    this.pages.hidden = starts.length < 2;
    this.stop();
    this.chosen = null;
    this.frame = this.last;
    this.first = 0;
    this.controls.hidden = !values.length;
    this.keys.hidden = !values.length;
    if (values.length) return this.draw(svg);
    replace(this.score, h("p", { class: "wb-note" }, `${sentence}. ${notes.map(asSentence).join(" ")}`));
    this.follow();
  }

  private play(): void {
    if (this.frame >= this.last) this.go(0);
    this.playButton.textContent = "❚❚ Pause";
    this.playButton.setAttribute("aria-pressed", "true");
    const next = () => {
      if (this.frame >= this.last) return this.stop();
      this.go(this.frame + 1, true);
      this.timer = setTimeout(next, PER_STEP / this.speed);
    };
    this.timer = setTimeout(next, START);
  }

  private stop(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
    this.playButton.textContent = "▶ Play";
    this.playButton.setAttribute("aria-pressed", "false");
  }

  private jump(to: number): void {
    this.stop();
    this.go(to);
  }

  /** Shows everything decided up to frame `to`; what is new is brought out. */
  private go(to: number, playing = false): void {
    const { steps, axes } = this.read();
    this.frame = clamp(to, 0, this.last);
    const { frame, last } = this;
    this.slider.value = String(frame);
    this.slider.setAttribute("aria-valuetext", frame ? `step ${frame} of ${last}` : "specified by the program");
    this.counter.textContent = frame
      ? `${frame} of ${last} · Shardy's step ${steps[frame - 1]}`
      : `beginning · 0 of ${last}`;
    const only = this.context.selection.axis;
    for (const node of this.moving) {
      const at = Number(node.dataset.frame);
      const other = only !== undefined && node.dataset.axis !== only && axes.includes(only);
      node.classList.toggle("wb-future", at > frame || other);
      node.classList.toggle("wb-now", at === frame && !other && frame > 0);
      node.classList.toggle("wb-past", at < frame && at > 0);
    }
    const now = this.moving.find((node) => Number(node.dataset.frame) === frame && node.dataset.to);
    const row = now && this.rows.find((each) => each.dataset.value === now.dataset.to);
    if (row && frame > 0) this.reveal(row);
    this.tell(playing);
  }

  /** Scrolls the box, never the page. */
  private reveal(row: SVGElement): void {
    const [box, place] = [this.score.getBoundingClientRect(), row.getBoundingClientRect()];
    const behavior = wantsStill() ? "auto" : "smooth";
    if (place.top < box.top + 40) this.score.scrollBy({ top: place.top - box.top - 60, behavior });
    else if (place.bottom > box.bottom - 20) this.score.scrollBy({ top: place.bottom - box.bottom + 60, behavior });
  }

  private tell(playing: boolean): void {
    const made = this.read();
    this.told.setAttribute("aria-live", playing ? "off" : "polite"); // nobody can follow a sentence per second
    const title = (name: string) => this.valueOf(name)?.title ?? name;
    this.told.textContent = made.values.length ? sentenceOf(made, this.frame, title) : "";
  }

  private valueOf(name: string): PlannedValue | undefined {
    const { values, place } = this.read();
    return values[place[name]];
  }

  private why(name: string): Child[] {
    const { why, steps } = this.read();
    return (why[name] ?? []).map(([axis, dimensions, at]) => {
      const chain = reasons(why, name, axis);
      const link = ({ sentence, value, frame }: Reason) => {
        const go = () => {
          this.jump(frame);
          this.choose(value);
        };
        return h("li", {}, button(sentence, go, { class: "wb-link" }));
      };
      const more = chain.length > MOST_REASONS ? h("li", {}, `… and ${chain.length - MOST_REASONS} more steps`) : null;
      return [
        h("h3", {}, `Why ${axis} on dimension ${dimensions.join(", ")}`),
        h("ol", { class: "wb-why" }, chain.slice(0, MOST_REASONS).map(link), more),
        button(at ? `Show step ${steps[at - 1]}` : "Show the beginning", () => this.jump(at)),
      ];
    });
  }

  private choose(name: string): void {
    const { place, page } = this.read();
    const value = this.valueOf(name);
    if (!value) return;
    const wanted = Math.floor(place[name] / page) * page;
    if (this.first !== wanted) {
      this.turn(wanted).then(() => {
        if (this.first === wanted && this.rows.some((row) => row.dataset.value === name)) this.choose(name);
      });
      return;
    }
    this.chosen = name;
    this.context.select({ stage: value.stage, line: value.line });
    this.follow();
    const row = this.rows.find((each) => each.dataset.value === name);
    if (row) this.reveal(row);
  }

  private follow(): void {
    const { stage, leaf, axis } = this.context.selection;
    const { axes, values } = this.read();
    const own = leaf && leaf !== this.leaf ? values.find((each) => each.leaf === leaf) : undefined;
    const moved = leaf !== this.leaf;
    this.leaf = leaf;
    if (moved && leaf) this.chosen = own?.name ?? null;
    this.axis.value = axis !== undefined && axes.includes(axis) ? axis : "";
    for (const row of this.rows) {
      const value = this.valueOf(row.dataset.value ?? "");
      const kin = Boolean((stage && value?.stage === stage) || (leaf && value?.leaf === leaf));
      row.classList.toggle("wb-selected", row.dataset.value === this.chosen);
      row.classList.toggle("wb-related", kin);
      row.setAttribute("aria-pressed", String(row.dataset.value === this.chosen));
    }
    for (const arc of this.score.querySelectorAll<SVGElement>(".wb-arc"))
      arc.classList.toggle("wb-related", arc.dataset.to === this.chosen);
    this.describe();
  }

  /** An array of the arguments that no axis reached has no row; still somebody asks why. */
  private describeWhole(): boolean {
    const { leaf: path } = this.context.selection;
    const leaf = this.leaves.find((each) => each.path === path);
    if (!leaf || leaf.spec.some(({ length }) => length) || this.read().values.some((each) => each.leaf === path))
      return false;
    const text = wholeBecause(leaf);
    const blocks: Block[] = [
      { form: "facts", title: "", rows: leaf.rows },
      { form: "note", title: "Why is it replicated?", text },
    ];
    const subtitle = "no mesh axis shards it";
    showDetails(this.context, this.panel, { title: leaf.path, kind: "server", subtitle, blocks });
    return true;
  }

  private find(text: string): void {
    const words = wordsOf(text);
    const { values } = this.read();
    const fits = ({ title, leaf, line }: PlannedValue) =>
      words.every((word) => `${title} ${leaf} ${line ?? ""}`.toLowerCase().includes(word));
    const from = 1 + values.findIndex(({ name }) => name === this.chosen);
    const found = [...values.slice(from), ...values.slice(0, from)].find(fits);
    this.context.say(found ? found.title : "No sharded value has that name.");
    if (found) this.choose(found.name);
  }

  private describe(): void {
    const { sentence, notes } = this.read();
    const value = this.chosen === null ? undefined : this.valueOf(this.chosen);
    if (!value && this.describeWhole()) return;
    if (value) {
      const blocks: Block[] = [{ form: "facts", title: "", rows: value.rows }];
      const extra = this.why(value.name);
      const subtitle = "a value of the program";
      return showDetails(this.context, this.panel, { title: value.title, kind: "broadcast", subtitle, blocks, extra });
    }
    const blocks: Block[] = [{ form: "note", title: "How to read this", text: HOW }];
    if (notes.length) blocks.push({ form: "note", title: "Notes", text: notes.map(asSentence).join(" ") });
    const title = "Why is it sharded?";
    showDetails(this.context, this.panel, { title, kind: "broadcast", subtitle: sentence, blocks });
  }

  private draw(text: string): void {
    const svg = pictureFrom(text);
    svg.setAttribute("role", "group");
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    this.rows = [...svg.querySelectorAll<SVGElement>("[data-value]")];
    this.moving = [...svg.querySelectorAll<SVGElement>("[data-frame]")];
    for (const row of this.rows) {
      row.setAttribute("role", "button");
      row.setAttribute("aria-label", row.dataset.label ?? "");
    }
    svg.addEventListener("click", (event) => {
      const row = (event.target as Element).closest<SVGElement>("[data-value]");
      if (row) this.choose(row.dataset.value ?? "");
    });
    rove<SVGElement>(svg, {
      items: () => this.rows,
      choose: (row) => this.choose(row.dataset.value ?? ""),
      moves: { ArrowRight: () => this.jump(this.frame + 1), ArrowLeft: () => this.jump(this.frame - 1) },
      escape: () => {
        this.chosen = null;
        this.follow();
      },
    });
    this.score.replaceChildren(svg);
    this.go(this.frame);
    this.follow();
  }

  private async turn(to: number): Promise<void> {
    this.first = to;
    this.pages.value = String(to);
    if (to === 0) return this.draw(this.read().svg);
    const answer = await this.context.request("propagation_page", { first: to }).catch(() => null);
    if (answer) this.draw(answer); // an error is shown already
  }
}

/** Draws what `read` returns; returns what draws it again. */
export function playPropagation(
  host: HTMLElement,
  context: ViewContext,
  read: () => PropagationState,
  leaves: readonly ShardingLeaf[] = [],
): () => void {
  const made = new Player(host, context, read, leaves);
  return () => made.build();
}

export const propagation: RenderView<"propagation"> = (host, context) => {
  const place = h("div", { class: "wb-scrolls" });
  host.append(place);
  context.onState(playPropagation(place, context, () => context.whole));
};
