// Keys inside a group of things: one of them is in the tab order, arrows move, Enter and space choose.
import { keepKeys, setTabIndex } from "./dom";

type Move<T> = number | ((item: T, focus: (next: T | undefined) => void) => void);

export interface Roving<T extends Element> {
  items: () => readonly T[];
  choose?: (item: T) => void;
  escape?: (item: T) => void;
  /** Other keys, or other steps for the arrows. */
  moves?: Readonly<Record<string, Move<T>>>;
}

const ARROWS: Readonly<Record<string, number>> = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
export const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);

/** Stops a key that was used: neither the page scrolls nor the notebook hears it. */
export function consume(event: Event): void {
  event.preventDefault();
  event.stopPropagation();
}

/** Makes `items` one stop of the tab order; returns what focuses one of them. */
export function rove<T extends HTMLElement | SVGElement>(container: Element, options: Roving<T>) {
  const { items, choose, escape, moves = {} } = options;
  keepKeys(container);
  const focus = (item: T | undefined) => {
    if (!item) return;
    for (const other of items()) setTabIndex(other, other === item ? 0 : -1);
    item.focus();
  };
  items().forEach((item, i) => setTabIndex(item, i === 0 ? 0 : -1));
  container.addEventListener("keydown", (raw) => {
    const event = raw as KeyboardEvent;
    const list = items();
    const at = list.indexOf((event.target as Element).closest("[tabindex]") as T);
    if (at < 0) return;
    const move = moves[event.key] ?? ARROWS[event.key];
    if (typeof move === "function") move(list[at], focus);
    else if (move !== undefined) focus(list[clamp(at + move, 0, list.length - 1)]);
    else if (event.key === "Home") focus(list[0]);
    else if (event.key === "End") focus(list[list.length - 1]);
    else if (event.key === "Enter" || event.key === " ") choose?.(list[at]);
    else if (event.key === "Escape" && escape) escape(list[at]);
    else return;
    consume(event);
  });
  return focus;
}

/** Rows to move by for a key in a list of which `page` fit on the screen. */
export function listStep(key: string, page: number): number | undefined {
  const steps: Record<string, number> = {
    ArrowDown: 1,
    ArrowUp: -1,
    PageDown: page,
    PageUp: -page,
    Home: Number.NEGATIVE_INFINITY,
    End: Number.POSITIVE_INFINITY,
  };
  return steps[key];
}
