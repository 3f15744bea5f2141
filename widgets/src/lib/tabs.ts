// Tabs whose views are built when they are first opened.
import { h, setTabIndex, uniqueId } from "./dom";
import { rove } from "./keyboard";

export interface Tab {
  key: string;
  title: string;
  help: string;
}
export interface Tabs {
  readonly bar: HTMLElement;
  /** Lists all tabs; shown where the bar is too narrow for them. */
  readonly more: HTMLElement;
  readonly panes: HTMLElement;
  open(key: string): void;
  focus(key: string): void;
  readonly present: string;
}

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
  let present = "";

  const open = (key: string) => {
    if (!buttons.has(key)) return;
    present = key;
    more.value = key;
    for (const [name, each] of buttons) {
      each.setAttribute("aria-selected", String(name === key));
      setTabIndex(each, name === key ? 0 : -1);
      if (name === key && bar.scrollWidth > bar.clientWidth)
        bar.scrollLeft = each.offsetLeft - (bar.clientWidth - each.offsetWidth) / 2;
      const pane =
        document.getElementById(`${id}-pane-${name}`) ?? panes.querySelector<HTMLElement>(`#${id}-pane-${name}`);
      if (pane) pane.hidden = name !== key;
    }
    const pane = panes.querySelector<HTMLElement>(`#${id}-pane-${key}`);
    if (!pane || built.has(key)) return;
    built.set(key, pane);
    build(key, pane);
  };
  const turn = (key: string) => {
    open(key);
    chosen(key);
  };
  for (const { key, title, help } of tabs) {
    const names = { id: `${id}-tab-${key}`, "aria-controls": `${id}-pane-${key}`, "data-tip": help, "data-key": key };
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
  // A menu of all tabs, where the bar has no room for them.
  const more = h(
    "select",
    { class: "wb-moretabs", "aria-label": "All views", hidden: true, onchange: () => turn(more.value) },
    tabs.map(({ key, title }) => h("option", { value: key }, title)),
  );
  const room = new ResizeObserver(() => {
    more.hidden = bar.scrollWidth <= bar.clientWidth + 1;
  });
  room.observe(bar);
  const all = () => [...buttons.values()];
  const step = (by: number) => (tab: HTMLElement, focus: (next: HTMLElement | undefined) => void) => {
    const next = all()[(all().indexOf(tab) + by + all().length) % all().length];
    focus(next);
    next.click();
  };
  const focus = rove(bar, {
    items: all,
    choose: (tab) => tab.click(),
    moves: { ArrowRight: step(1), ArrowLeft: step(-1), ArrowDown: step(1), ArrowUp: step(-1) },
  });
  return {
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
