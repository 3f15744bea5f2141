// Controls of an experiment: sliders over steps or factors, and menus.
import { h, uniqueId } from "../lib/dom";
import { formatCount } from "../lib/format";
import type { PlaygroundField } from "../lib/states";

export type Value = string | number;
export interface Knob {
  node: HTMLElement;
  get(): Value;
  set(value: Value): void;
}

const exact = (value: number): number => Number(value.toPrecision(6));

/** All positions of a slider. */
export function positionsOf({ low = 0, high = 1, factor, step = 1 }: PlaygroundField): number[] {
  const made: number[] = [];
  if (factor) for (let value = low; value <= high * 1.0001; value *= factor) made.push(exact(value));
  else for (let i = 0; low + i * step <= high + 1e-9; i++) made.push(exact(low + i * step));
  return made;
}

/** The position next to a value, on a scale of factors. */
export function nearest(positions: readonly number[], value: number): number {
  const away = (each: number) => Math.abs(Math.log((each + 1e-6) / (value + 1e-6)));
  return positions.reduce((best, each, i) => (away(each) < away(positions[best]) ? i : best), 0);
}

export function knobOf(field: PlaygroundField, start: Value): Knob {
  const id = uniqueId();
  const label = h("label", { for: id }, field.label);
  const help = h("span", { class: "wb-note", id: `${id}-help` }, field.help);
  if (field.choices) {
    const menu = h(
      "select",
      { id, "aria-describedby": `${id}-help` },
      field.choices.map((each) => h("option", { value: each }, each)),
    );
    menu.value = String(start);
    const set = (value: Value) => (menu.value = String(value));
    return { node: h("div", { class: "wb-field" }, label, menu, help), get: () => menu.value, set };
  }
  const positions = positionsOf(field);
  const slider = h("input", {
    id,
    type: "range",
    min: 0,
    max: positions.length - 1,
    step: 1,
    "aria-describedby": `${id}-help`,
  });
  const shown = h("output", { for: id });
  let own: number | null = null; // a value between two positions, from the kernel
  const say = () => {
    const at = Number(slider.value);
    const last = field.last && at === positions.length - 1;
    shown.textContent = last ? (field.last ?? "") : formatCount(own ?? positions[at]);
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  const set = (value: Value) => {
    const at = nearest(positions, Number(value));
    own = Math.abs(positions[at] - Number(value)) > 1e-9 ? Number(value) : null;
    slider.value = String(at);
    say();
  };
  slider.addEventListener("input", () => {
    own = null;
    say();
  });
  set(start);
  const row = h("div", { class: "wb-sliderow" }, slider, shown);
  return {
    node: h("div", { class: "wb-field" }, label, row, help),
    get: () => own ?? positions[Number(slider.value)],
    set,
  };
}
