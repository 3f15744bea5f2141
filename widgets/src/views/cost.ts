// Predicted cost: the roofline, seconds per stage and mesh axis; other sizes; targets side by side, here and elsewhere.

import { button, type Child, h, replace } from "../lib/dom";
import { asSentence, formatBytes, formatFlops, formatSeconds, plural } from "../lib/format";
import { term } from "../lib/glossary";
import type { StageCost, TargetCost } from "../lib/states";
import { takeAlong } from "../lib/take-along";
import type { RenderView, ViewContext } from "../lib/view";
import { compilePanel, sideBySide } from "./cost-compile";
import { axesOf, costsSomething, timeParts } from "./cost-data";
import { lineRoofline, stageRoofline } from "./cost-roofline";
import { whatIf } from "./cost-scaling";

const LOOKS: Record<string, string> = { compute: "wb-part-clients", memory: "wb-part-broadcast" };
const AXIS_LOOKS = 4; // patterns of axes in the style sheet; the last is for all others
const LEAST = 1e-30;

/** A bar of parts, each with its look, as a share of the longest. */
function strip(parts: readonly (readonly [number, string])[], longest: number): HTMLElement {
  const made = parts
    .filter(([value]) => value > 0)
    .map(([value, look]) => {
      const part = h("div", { class: `wb-part ${look}` });
      part.style.width = `${(100 * value) / longest}%`;
      return part;
    });
  return h("div", { class: "wb-bar", "aria-hidden": "true" }, made);
}

/** Without clients there are no sliders: the cell that asks for another size, with only shapes. */
function otherSizes(context: ViewContext<"cost">): HTMLElement | null {
  if (!context.hasKernel || !context.state("elsewhere")?.length) return null;
  const code = context.state("other_size");
  const shown = h("pre", { class: "wb-code", tabindex: 0, "aria-label": "Cell for another size" }, code);
  const text =
    "The arguments of an ordinary JAX function determine its size. Write your own arguments into this cell: it compiles " +
    "the function for both sizes and compares the results; nothing runs. For more devices, compile for a machine below.";
  return h(
    "details",
    { class: "wb-whatif" },
    h("summary", {}, "What if: a larger model, a larger batch?"),
    h("p", { class: "wb-note" }, text),
    shown,
    takeAlong(context, () => code, shown),
  );
}

class Cost {
  private readonly shown = h("div");
  private readonly sizes: ReturnType<typeof whatIf>;
  private drawn: unknown = null;

  constructor(
    private readonly host: HTMLElement,
    private readonly context: ViewContext<"cost">,
  ) {
    this.sizes = whatIf(
      context,
      () => this.targets,
      (target, longest) => this.stageTable(target, longest, "estimated"),
    );
    host.append(
      ...[this.shown, this.sizes?.section ?? otherSizes(context), compilePanel(context)].filter(
        (node): node is HTMLElement => Boolean(node),
      ),
    );
    host.addEventListener("click", (event) => {
      const row = (event.target as Element).closest<HTMLElement>("tr[data-stage]");
      if (row) context.select({ stage: row.dataset.stage });
    });
    context.onLive(() => this.draw());
    context.onSelection(() => this.follow());
    this.draw();
  }

  private get compiled(): readonly TargetCost[] {
    return this.context.live("compiled") ?? [];
  }

  private get targets(): readonly TargetCost[] {
    return [...this.context.state("targets"), ...this.compiled];
  }

  private draw(): void {
    const key = this.context.live("compiled") ?? this;
    if (this.drawn === key) return;
    this.drawn = key;
    const all = this.targets;
    const most = (value: (stage: StageCost) => number | null) =>
      Math.max(LEAST, ...all.flatMap(({ stages }) => stages.map((stage) => value(stage) ?? 0)));
    const [seconds, flops] = [most((stage) => stage.seconds), most((stage) => stage.flops)];
    const names = new Set(this.compiled.map(({ target }) => target));
    replace(
      this.shown,
      sideBySide(this.context, all, names),
      all.map((target) => this.section(target, target.seconds === null ? flops : seconds)),
    );
    this.sizes?.offer();
    this.follow();
  }

  private section(target: TargetCost, longest: number): HTMLElement {
    const assumed = [...target.notes, ...target.assumptions];
    const rests = assumed.length
      ? h(
          "details",
          {},
          h("summary", {}, `Assumptions: ${target.assumptions[0] ?? "notes"}, …`),
          h(
            "ul",
            { class: "wb-note" },
            assumed.map((each) => h("li", {}, asSentence(each))),
          ),
        )
      : null;
    const { lines, roofs, stages } = target;
    const picture = lines ? lineRoofline(this.context, lines) : roofs && stageRoofline(this.context, roofs, stages);
    const roofline = picture && h("div", { class: "wb-right" }, h("h3", {}, term(this.context, "roofline")), picture);
    return h(
      "section",
      { class: "wb-target", "aria-label": target.target },
      this.misfit(target),
      h("div", {}, h("h3", {}, this.titleOf(target)), this.total(target), rests),
      this.stageTable(target, longest, "predicted"),
      roofline,
    );
  }

  /** The program was compiled here, and its seconds are those of a chip: both are named. */
  private titleOf({ target, chip, seconds }: TargetCost): string {
    return seconds !== null && !target.startsWith(chip) ? `${target}, as if on ${chip}` : target;
  }

  /** Seconds of a call need a chip's figures, and those of every stage. */
  private whyNoSeconds({ chip, stages }: TargetCost): string {
    const unknown = stages.filter(({ seconds }) => seconds === null).map(({ name }) => name);
    if (chip === "no chip" || !unknown.length)
      return 'Seconds need the published figures of a chip: inspect with on="v5e:4x4" or another.';
    return `The time of the call on ${chip} is not predicted, because no time is predicted for ${unknown.join(", ")}.`;
  }

  /** Why stages lack figures. */
  private unpriced(stages: readonly StageCost[]): Child {
    const why = [...new Set(stages.flatMap(({ unknown }) => unknown))];
    return why.length ? h("p", { class: "wb-note" }, `Not predicted: ${why.join("; ")}.`) : null;
  }

  private total(target: TargetCost): HTMLElement {
    const time = target.seconds === null ? "" : formatSeconds(target.seconds);
    const { lines } = target;
    const least = target.at_least ? "at least " : "";
    const sent = lines?.communication ?? 0;
    const assumed = time || !lines ? "" : `${least}${formatSeconds(lines.seconds + sent)}`;
    const communication =
      lines?.communication === null
        ? "Communication is not counted, because its time is unknown. "
        : sent
          ? `Communication takes ${formatSeconds(sent)} of it. `
          : "";
    const note = time
      ? `on ${target.chip}`
      : assumed
        ? `on ${lines?.chip.name}, which is assumed: the program does not name a chip. ${communication}${asSentence(target.work)}`
        : [target.work && asSentence(target.work), this.whyNoSeconds(target)].filter(Boolean).join(" ");
    return h(
      "div",
      { class: "wb-tile" },
      h("h3", {}, "one call, ", term(this.context, "predicted")),
      h("div", { class: "wb-big" }, time || assumed || target.total),
      h("div", { class: "wb-note" }, note),
    );
  }

  private misfit(target: TargetCost): Child {
    if (target.fits !== false) return null;
    const largest = target.buffers.map(([name, bytes, shape, where]) =>
      h("li", {}, `${bytes}: ${name} ${shape.split("{")[0]} ${where ? `from ${where}` : ""}`),
    );
    const sentence = `Does not fit: needs ${formatBytes(target.peak)} of ${formatBytes(target.available)}.`;
    return h(
      "div",
      { class: "wb-misfit", role: "note" },
      h("b", {}, sentence),
      largest.length ? h("ul", {}, largest) : null,
    );
  }

  /** Stages × axes as bars: of seconds where a chip is known, else of FLOPs; what each stage sends over each axis. */
  private stageTable(
    target: { target: string; stages: readonly StageCost[] },
    longest: number,
    known: string,
  ): HTMLElement {
    const { stages } = target;
    const timed = stages.some(({ seconds }) => seconds !== null);
    const axes = axesOf(stages);
    const look = (name: string) => LOOKS[name] ?? `wb-axis-${Math.min(axes.indexOf(name), AXIS_LOOKS - 1)}`;
    const most = Math.max(LEAST, ...stages.flatMap(({ wire }) => Object.values(wire)));
    const row = (stage: StageCost) => this.stageRow(stage, { timed, axes, look, longest, most });
    const idle = stages.filter((stage) => !costsSomething(stage));
    const rows = stages.map((stage) => {
      const made = row(stage);
      made.hidden = idle.includes(stage) && idle.length < stages.length;
      return made;
    });
    const more =
      idle.length && idle.length < stages.length
        ? button(
            `Show ${plural(idle.length, "stage")} without cost`,
            () => {
              for (const each of rows) each.hidden = false;
              more?.remove();
            },
            { class: "wb-link" },
          )
        : null;
    const column = (name: Child) => h("th", { scope: "col" }, name || h("span", { class: "wb-hidden" }, "value"));
    const titles = [
      "stage",
      `${timed ? "time" : "matrix FLOPs"}, ${known}`,
      ...(timed ? ["", "bound", "matrix FLOPs"] : [""]),
      "elementwise",
      "memory traffic",
      ...(axes.length ? [axes.length > 1 ? "sent" : `sent over ${axes[0]}`] : []),
    ];
    const label = `Cost of stages on ${target.target}`;
    const table = h(
      "table",
      { "aria-label": label, class: timed ? "wb-timed" : null },
      h("thead", {}, h("tr", {}, titles.map(column))),
      h("tbody", {}, rows),
    );
    return h(
      "div",
      {},
      timed ? this.keys(axes, look) : null,
      timed ? null : this.unpriced(stages),
      h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": label }, table),
      more,
    );
  }

  private keys(axes: string[], look: (name: string) => string): HTMLElement {
    const key = (words: Child, name: string) =>
      h("span", { class: "wb-row" }, h("span", { class: `wb-key ${look(name)}`, "aria-hidden": "true" }), words);
    const parts = ["compute", "memory"].map((name) => key(term(this.context, name), name));
    return h(
      "div",
      { class: "wb-row wb-keys" },
      parts,
      axes
        .slice(0, AXIS_LOOKS)
        .map((axis, i) => [axis, i < AXIS_LOOKS - 1 ? axis : axes.slice(i).join(", ")])
        .map(([axis, named]) => key([term(this.context, "collective"), ` over ${named}`], axis)),
    );
  }

  private stageRow(
    stage: StageCost,
    {
      timed,
      axes,
      look,
      longest,
      most,
    }: { timed: boolean; axes: string[]; look: (name: string) => string; longest: number; most: number },
  ): HTMLTableRowElement {
    const parts = timed
      ? timeParts(stage).map(([name, value]) => [value, look(name)] as const)
      : [[stage.flops ?? 0, LOOKS.compute] as const];
    const wires = axes
      .filter((axis) => stage.wire[axis] || stage.wire_least.includes(axis))
      .map((axis) => {
        const bytes = stage.wire[axis];
        const least = bytes && stage.wire_least.includes(axis) ? "≥ " : "";
        const amount = bytes ? `${least}${formatBytes(bytes)}` : "unknown";
        const named = axes.length > 1 ? `${amount} over ${axis}` : amount;
        return [bytes ? strip([[bytes, look(axis)]], most) : null, h("span", {}, named)];
      });
    const number = (text: string) => h("td", { class: "wb-num" }, text);
    const choose = button(`${stage.stage}. ${stage.name}`, () => this.context.select({ stage: stage.stage }), {
      class: "wb-link",
    });
    const time = timed
      ? stage.unknown.length
        ? [number("not predicted"), h("td", { class: "wb-why" }, stage.unknown.join("; "))]
        : [number(formatSeconds(stage.seconds)), h("td", {}, stage.seconds === 0 ? "" : stage.bound)]
      : null;
    const counted = [
      number(stage.flops === 0 ? "–" : formatFlops(stage.flops)),
      number(stage.elementwise === 0 ? "–" : formatFlops(stage.elementwise)),
      number(stage.accessed === 0 ? "–" : formatBytes(stage.accessed)),
    ];
    return h(
      "tr",
      { "data-stage": stage.stage },
      h("td", {}, choose),
      h("td", { class: "wb-barcell" }, strip(parts, longest)),
      time,
      counted,
      axes.length ? h("td", { class: "wb-wirecell" }, wires.length ? wires : "–") : null,
    );
  }

  private follow(): void {
    const { stage } = this.context.selection;
    for (const node of this.host.querySelectorAll<HTMLElement | SVGElement>("[data-stage]")) {
      node.classList.toggle("wb-selected", node.dataset.stage === stage);
      if (node.getAttribute("role") === "button")
        node.setAttribute("aria-pressed", String(node.dataset.stage === stage));
    }
  }
}

export const cost: RenderView<"cost"> = (host, context) => {
  const place = h("div", { class: "wb-scrolls" });
  host.append(place);
  if (context.state("targets").length) new Cost(place, context);
  else place.append(h("p", { class: "wb-note" }, context.state("sentence")));
};
