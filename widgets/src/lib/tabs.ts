// Tabs whose views are built when they are first opened, sorted into the places of a reader's questions.
import { button, h, setTabIndex, uniqueId } from "./dom";
import { rove } from "./keyboard";
import type { TabState } from "./states";

/** A tab; without a place, or where all are of one place, there is no switch between places. */
export type Tab = Pick<TabState, "key" | "title" | "help"> & Partial<Pick<TabState, "place">>;
export interface Tabs {
  /** Switches between the places; empty where there is one. Below it, `bar` has the tabs of one place. */
  readonly places: HTMLElement;
  readonly bar: HTMLElement;
  /** Lists all tabs; shown where the bar is too narrow for them. */
  readonly more: HTMLElement;
  readonly panes: HTMLElement;
  open(key: string): void;
  focus(key: string): void;
  readonly present: string;
}

/** The questions that a reader comes with: a name and what its tabs answer. */
export const PLACES: Readonly<Record<TabState["place"], readonly [string, string]>> = {
  where: ["Where", "Where FLOPs, bytes and memory are: functions, lines, instructions, devices"],
  when: ["When", "When each device and client works, and which one the others wait for"],
  "what-if": ["What if", "The effect of a different sharding, size or machine"],
  learn: ["Learn", "The communication step by step"],
};

/** The places that have tabs, in the order of `PLACES`. */
export const placesOf = (tabs: readonly Tab[]): TabState["place"][] =>
  (Object.keys(PLACES) as TabState["place"][]).filter((place) => tabs.some((tab) => tab.place === place));

/** `build` fills a pane once; `chosen` hears of every tab that a reader opens. */
export function createTabs(
  tabs: readonly Tab[],
  build: (key: string, pane: HTMLElement) => void,
  chosen: (key: string) => void,
): Tabs {
  const id = uniqueId();
  const bar = h("div", { class: "wb-tabs", role: "tablist", "aria-label": "Views" });
  const panes = h("div", { class: "wb-panes" });
  const buttons = new Map<string, HTMLElement>();
  const built = new Map<string, HTMLElement>();
  const placeOf = new Map(tabs.map(({ key, place }) => [key, place]));
  const last = new Map<string, string>(); // the tab that was open in a place
  let present = "";

  const kinds = placesOf(tabs);
  const places = h("div", { class: "wb-places", role: "group", "aria-label": "Places", hidden: kinds.length < 2 });
  for (const place of kinds) {
    const [title, tip] = PLACES[place];
    const enter = () => turn(last.get(place) ?? tabs.find((tab) => tab.place === place)?.key ?? present);
    places.append(button(h("span", { "data-text": title }, title), enter, { "data-place": place, "data-tip": tip }));
  }

  const open = (key: string) => {
    if (!buttons.has(key)) return;
    present = key;
    more.value = key;
    const place = placeOf.get(key);
    if (place) last.set(place, key);
    for (const each of places.querySelectorAll("button")) {
      each.setAttribute("aria-pressed", String(each.dataset.place === place));
      setTabIndex(each, each.dataset.place === place ? 0 : -1);
    }
    for (const [name, each] of buttons) {
      each.hidden = kinds.length > 1 && placeOf.get(name) !== place;
      each.setAttribute("aria-selected", String(name === key));
      setTabIndex(each, name === key ? 0 : -1);
      const pane =
        document.getElementById(`${id}-pane-${name}`) ?? panes.querySelector<HTMLElement>(`#${id}-pane-${name}`);
      if (pane) pane.hidden = name !== key;
    }
    followRoom();
    const pane = panes.querySelector<HTMLElement>(`#${id}-pane-${key}`);
    if (!pane || built.has(key)) return;
    built.set(key, pane);
    build(key, pane);
  };
  const turn = (key: string) => {
    open(key);
    chosen(key);
  };
  for (const { key, title, help, place } of tabs) {
    const names = {
      id: `${id}-tab-${key}`,
      "aria-controls": `${id}-pane-${key}`,
      "data-tip": help,
      "data-key": key,
      "data-place": place,
    };
    const made = h(
      "button",
      { type: "button", role: "tab", ...names, onclick: () => turn(key) },
      h("span", { "data-text": title }, title),
    );
    const pane = { role: "tabpanel", id: `${id}-pane-${key}`, "aria-labelledby": `${id}-tab-${key}`, "data-view": key };
    panes.append(h("div", { ...pane, class: "wb-pane", hidden: true }));
    buttons.set(key, made);
    bar.append(made);
  }
  const options = (some: readonly Tab[]) => some.map(({ key, title }) => h("option", { value: key }, title));
  // A menu of all tabs, where the bar has no room for them.
  const more = h(
    "select",
    { class: "wb-moretabs", "aria-label": "All views", hidden: true, onchange: () => turn(more.value) },
    kinds.length > 1
      ? kinds.map((place) =>
          h("optgroup", { label: PLACES[place][0] }, options(tabs.filter((tab) => tab.place === place))),
        )
      : options(tabs),
  );
  const followRoom = () => {
    more.hidden = true; // the tabs of this place may fit without it
    more.hidden = bar.scrollWidth <= bar.clientWidth + 1;
    const tab = buttons.get(present);
    if (tab) bar.scrollLeft = tab.offsetLeft - bar.offsetLeft - (bar.clientWidth - tab.offsetWidth) / 2;
  };
  const room = new ResizeObserver(followRoom);
  room.observe(bar);
  const all = () => [...buttons.values()];
  type Focus = (next: HTMLElement | undefined) => void;
  /** Opens before it focuses: a tab of another place is hidden until then. */
  const go = (next: HTMLElement, focus: Focus) => {
    next.click();
    focus(next);
  };
  const step = (by: number) => (tab: HTMLElement, focus: Focus) =>
    go(all()[(all().indexOf(tab) + by + all().length) % all().length], focus);
  const focus = rove(bar, {
    items: all,
    choose: (tab) => tab.click(),
    moves: {
      ArrowRight: step(1),
      ArrowLeft: step(-1),
      ArrowDown: step(1),
      ArrowUp: step(-1),
      Home: (_, focus) => go(all()[0], focus),
      End: (_, focus) => go(all()[all().length - 1], focus),
    },
  });
  rove(places, { items: () => [...places.querySelectorAll("button")], choose: (place) => place.click() });
  return {
    places,
    bar,
    more,
    panes,
    open,
    focus: (key) => focus(buttons.get(key)),
    get present() {
      return present;
    },
  };
}
