// Sliders for another size of the program; the kernel estimates every number again from the program's own records.

import { button, type Child, h, menu, type Option, replace } from "../lib/dom";
import { formatBytes, formatCount, formatFlops, formatSeconds, plural } from "../lib/format";
import { term } from "../lib/glossary";
import type { ScaledState, Scaling, StageCost, TargetCost } from "../lib/states";
import type { ViewContext } from "../lib/view";

export type DrawStages = (target: { target: string; stages: readonly StageCost[] }, longest: number) => HTMLElement;

/** How an estimate compares with the program as it is. */
export function comparedWith(now: number | null, then: number | null, base: string): string {
  if (!now || !then) return "";
  return Math.abs(then / now - 1) > 1e-9 ? `× ${(then / now).toPrecision(3)} of ${base}` : `as on ${base}`;
}

class WhatIf {
  readonly section: HTMLElement;
  private readonly sliders = h("div", { class: "wb-sliders" });
  private readonly results = h("div", { class: "wb-tiles", "aria-live": "polite" });
  private readonly stages = h("div");
  private readonly rests = h("div");
  private readonly menus = h("div", { class: "wb-row wb-menus" });
  private inputs: Record<string, () => number | string> = {};
  private base: TargetCost;
  private chip = "";
  private busy = false;
  private again = false;

  constructor(
    private readonly context: ViewContext<"cost">,
    private readonly targets: () => readonly TargetCost[],
    private readonly drawStages: DrawStages,
  ) {
    this.base = this.known[0];
    this.settle();
    const { placement } = this.scaling;
    const summary = h("summary", {}, `What if: more ${placement}, a larger model, a smaller chunk size, more devices?`);
    this.section = h(
      "details",
      { class: "wb-whatif" },
      summary,
      this.menus,
      this.sliders,
      this.results,
      this.stages,
      this.rests,
    );
    this.section.addEventListener("toggle", () => {
      if ((this.section as HTMLDetailsElement).open && !this.results.childElementCount) this.ask();
    });
  }

  private get known(): readonly TargetCost[] {
    return this.targets().filter(({ scaling }) => scaling);
  }

  /** The targets to start from, of which there are more after a compilation. */
  offer(): void {
    const made = this.scaling;
    const from = menu(
      "Starting from",
      this.known.map(({ target }): Option<string> => [target, target]),
      this.base.target,
      (name) => {
        this.base = this.known.find(({ target }) => target === name) ?? this.base;
        this.settle();
        this.ask();
      },
    );
    const chips = made.chips.map((name): Option<string> => [name, name]);
    const chip = menu(
      "Chip of the estimate",
      [["", made.chip_now ? `current: ${made.chip_now}` : "none: no seconds"], ...chips],
      this.chip,
      (name) => {
        this.chip = name;
        this.ask();
      },
    );
    const reset = button("Reset", () => {
      this.settle();
      this.ask();
    });
    replace(this.menus, h("label", {}, "starting from ", from), h("label", {}, "chip ", chip), reset);
  }

  private get scaling(): Scaling {
    return this.base.scaling as Scaling;
  }

  private slider<T extends number | string>(
    name: string,
    label: string,
    values: readonly T[],
    now: T,
    text: (value: T) => string,
  ): HTMLElement {
    const input = h("input", {
      type: "range",
      min: 0,
      max: values.length - 1,
      step: 1,
      value: Math.max(0, values.indexOf(now)),
      "aria-label": label,
      disabled: values.length < 2,
    });
    const shown = h("output");
    const value = () => values[Number(input.value)];
    const tell = () => {
      shown.textContent = text(value());
      input.setAttribute("aria-valuetext", text(value()));
    };
    input.addEventListener("input", () => {
      tell();
      this.ask();
    });
    tell();
    this.inputs[name] = value;
    return h("label", {}, h("span", {}, label), input, shown);
  }

  /** The sliders at the size that the program has. */
  private settle(): void {
    const made = this.scaling;
    this.inputs = {};
    const assumed = made.chip_now ? undefined : this.base.lines?.chip.name; // as in the view below
    this.chip = assumed && made.chips.includes(assumed) ? assumed : "";
    const chunk = (value: number | string) =>
      typeof value === "number"
        ? formatCount(value)
        : `${value}: ${made.at_once_now}${value === "auto" ? " as compiled" : ""}`;
    replace(
      this.sliders,
      this.slider("clients", made.placement, made.clients, made.clients_now, formatCount),
      this.slider("model", "model size", made.model, 1, (value) => (value === 1 ? "unchanged" : `× ${value}`)),
      this.slider("chunk_size", `${made.placement} at once`, made.at_once, made.at_once[0], chunk),
      this.slider(
        "devices",
        made.axes ? `devices, along ${made.axes}` : `devices (no mesh axis shards the ${made.placement})`,
        made.devices,
        made.devices_now,
        formatCount,
      ),
    );
    this.offer();
  }

  private tile(title: Child, value: string, compared: string, note: string, wrong = false): HTMLElement {
    const words = [compared, note].filter(Boolean).join(" · ");
    return h(
      "div",
      { class: "wb-tile" },
      h("h3", {}, title),
      h("div", { class: `wb-big${wrong ? " wb-wrong" : ""}` }, value),
      h("div", { class: "wb-note" }, words),
    );
  }

  private draw(made: ScaledState): void {
    const { base, context } = this;
    const estimated = (words: string): Child => [`${words}, `, term(context, "estimated")];
    const compared = (name: keyof ScaledState["as_is"], then: number | null) =>
      comparedWith(made.as_is[name], then, base.target);
    const room = formatBytes(made.available);
    const fit =
      made.fits === null
        ? "the memory of a device is not known"
        : made.fits
          ? `of ${room}: fits`
          : `of ${room}: DOES NOT FIT, ${formatBytes((made.peak ?? 0) - (made.available ?? 0))} too much`;
    const idle = made.idle
      ? `${formatCount(made.idle)} of ${formatCount(made.devices)} devices are idle`
      : plural(made.devices, "device");
    replace(
      this.results,
      this.tile(
        estimated("one call"),
        formatSeconds(made.seconds),
        compared("seconds", made.seconds),
        made.seconds === null ? "choose a chip" : made.chip,
      ),
      this.tile(
        estimated("peak memory per device"),
        formatBytes(made.peak),
        compared("peak", made.peak),
        made.peak === null ? "nothing was compiled" : fit,
        made.fits === false,
      ),
      this.tile(
        estimated("matrix FLOPs per device"),
        formatFlops(made.flops),
        compared("flops", made.flops),
        `and ${formatFlops(made.elementwise)} elementwise; ${formatCount(made.per_device)} ` +
          `${this.scaling.placement} on the fullest device`,
      ),
      this.tile(estimated("sent by one device"), formatBytes(made.sent), compared("sent", made.sent), idle),
    );
    const most = (stage: StageCost) => (made.seconds === null ? stage.flops : stage.seconds) ?? 0;
    const table = this.drawStages(
      { target: `${base.target}, estimated`, stages: made.stages },
      Math.max(1e-30, ...made.stages.map(most)),
    );
    replace(this.stages, h("details", {}, h("summary", {}, "Stage by stage"), table));
    replace(
      this.rests,
      h("p", { class: "wb-note" }, [made.chunks, made.error].filter(Boolean).join(" ")),
      h(
        "details",
        {},
        h("summary", {}, "Assumptions of the estimate"),
        h(
          "ul",
          { class: "wb-note" },
          made.assumptions.map((each) => h("li", {}, each)),
        ),
      ),
    );
  }

  /** One question at a time; while it is answered only the newest of the others is kept. */
  private ask(): void {
    this.again = true;
    if (this.busy || !this.context.hasKernel) return;
    this.busy = true;
    this.answer()
      .catch(() => {})
      .finally(() => {
        this.busy = false;
      });
  }

  private async answer(): Promise<void> {
    while (this.again) {
      this.again = false;
      const { clients, model, devices, chunk_size } = this.inputs;
      const chunk = chunk_size();
      const args = {
        target: this.base.target,
        clients: clients(),
        model: model(),
        devices: devices(),
        chunk_size: typeof chunk === "number" ? chunk : null,
        chip: this.chip || null,
      };
      this.draw(await this.context.request("scale", args));
    }
  }
}

/** Nothing where no target can be estimated at another size, or nobody could answer. */
export function whatIf(
  context: ViewContext<"cost">,
  targets: () => readonly TargetCost[],
  drawStages: DrawStages,
): WhatIf | null {
  return context.hasKernel && targets().some(({ scaling }) => scaling)
    ? new WhatIf(context, targets, drawStages)
    : null;
}
