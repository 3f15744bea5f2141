// All views of one program as tabs of one widget, in places; what is chosen in one is chosen in all.
import { onReport } from "./lib/badges";
import { button, type Child, h, replace } from "./lib/dom";
import { finder } from "./lib/finder";
import { createContext, type Requests, type Shared } from "./lib/model";
import { askNotebook, hasLabextension, placeOf } from "./lib/notebook";
import { describeChosen, entries } from "./lib/selection";
import type { Shell } from "./lib/shell";
import { NARROW } from "./lib/split";
import { stageButton } from "./lib/stage";
import { createTabs } from "./lib/tabs";
import type { SelectionKind, ViewContext, ViewName } from "./lib/view";
import { VIEWS } from "./views";

const ROOMY = 1040; // pixels from which the tabs leave room for the search

/** What matters first: the largest collective, memory per device, does it fit; each opens its view. */
function headline(context: ViewContext<"explorer">): Child {
  return context.state("headline").map(({ text, help, look, view, select }) => {
    const attributes = { class: `wb-figure wb-look-${look}`, "data-tip": help };
    if (!view) return h("span", { ...attributes, tabindex: 0 }, text);
    const go = () => {
      if (select) context.select(select);
      context.open(view);
    };
    return button(text, go, attributes);
  });
}

/** Scrolls the notebook to the chosen line, where the page can do that. */
function jumpButton(context: ViewContext<"explorer">): Child {
  const place = placeOf(context.selection.line ?? "");
  if (!place || !hasLabextension()) return null;
  const jump = () => {
    if (!context.jumpToLine(place)) context.say("Its cell is no longer in the notebook.");
  };
  return button("Show in notebook", jump, {
    class: "wb-jump",
    "data-tip": "Scrolls to the line's cell, or opens its file, and marks the line.",
  });
}

/** Moves the explorer beside the notebook, where the page can do that. */
function dockButton(context: ViewContext, title: string, host: HTMLElement): Child {
  if (!context.hasKernel || !hasLabextension()) return null;
  const dock = () => {
    if (!askNotebook(host, { kind: "dock", title })) context.say("This page cannot open another panel.");
  };
  return button("Next to the notebook", dock, {
    class: "wb-dockbutton",
    "data-tip": "Shows the explorer in a separate panel, so that it is visible together with the cell.",
  });
}

/** What is chosen, each with a way to let go of it. */
function chosenBar(context: ViewContext<"explorer">): HTMLElement {
  const bar = h("div", { class: "wb-chosen", role: "group", "aria-label": "Selected" });
  const name = (kind: SelectionKind, value: string | number): string | undefined => {
    if (kind === "node") return context.of("operations")?.state("names")[Number(value)];
    if (kind === "leaf") {
      const one = context
        .of("sharding")
        ?.state("leaves")
        .some(({ path }) => path === value);
      return `${one ? "array" : "arrays in"} ${value}`;
    }
    const code = kind === "line" ? context.of("hlo")?.state("code") : undefined;
    const cell = code?.find(([file]) => String(value).startsWith(`${file}:`))?.[1];
    return cell?.startsWith("In [") ? `${cell}:${String(value).split(":").pop()}` : undefined;
  };
  const follow = () => {
    const all = entries(context.selection).map(([kind, value]) => {
      const text = name(kind, value) ?? describeChosen(kind, value);
      return button(`${text} ×`, () => context.select({ [kind]: null }), { "aria-label": `Clear ${text}` });
    });
    replace(bar, all.length ? all : h("span", { class: "wb-note" }, "Nothing selected"), jumpButton(context));
  };
  context.onSelection(follow);
  follow();
  return bar;
}

export function explorer(shell: Shell, shared: Shared, requests: Requests): void {
  const context = createContext<"explorer">(shell.body, "", shared, requests);
  // A page without a kernel cannot ask for advice: there the tab is for advice that was found before.
  const asks = context.hasKernel || Boolean(context.liveOf("advice", "report"));
  const tabs = context.state("views").filter(({ key }) => key !== "advice" || asks);
  const build = (key: string, pane: HTMLElement) => {
    try {
      VIEWS[key](pane, createContext(pane, key as ViewName, shared, requests));
    } catch (error) {
      shared.fail(error);
    }
  };
  const made = createTabs(tabs, build, (key) => {
    if (context.setting("view", "") !== key) context.set("view", key);
  });
  shared.open = (view) => {
    if (!tabs.some(({ key }) => key === view)) return;
    made.open(view);
    context.set("view", view);
  };
  const counts = [made.bar.querySelector('[data-key="advice"]'), made.places.querySelector('[data-place="what-if"]')];
  for (const holder of counts) {
    const count = h("span", { class: "wb-tabcount", hidden: true });
    holder?.append(count);
    onReport(context, (report) => {
      count.hidden = !report?.findings.length;
      count.textContent = String(report?.findings.length ?? "");
      count.setAttribute("aria-label", `${report?.findings.length ?? 0} findings`);
    });
  }
  const target = context.state("target");
  const name = h(
    "h2",
    { class: "wb-title" },
    context.state("title"),
    target ? h("span", { class: "wb-target-name" }, ` on ${target}`) : null,
  );
  const figures = h("div", { class: "wb-headline", role: "group", "aria-label": "In short" });
  replace(figures, headline(context));
  const tabbar = h("div", { class: "wb-tabbar" }, made.places, made.bar, made.more);
  shell.head.append(
    h("div", { class: "wb-titlebar" }, name, figures, dockButton(context, context.state("title"), shell.head)),
    tabbar,
  );
  shell.body.append(made.panes);
  const turn = (by: 1 | -1) => {
    const next = tabs[tabs.findIndex(({ key }) => key === made.present) + by];
    if (next) shared.open(next.key);
  };
  const onStage = stageButton(shell.body, { signal: shared.signal, say: shell.say, step: turn });
  const foot = h("div", { class: "wb-foot wb-row" }, chosenBar(context), onStage);
  shell.body.after(foot);
  const find = finder(context, shell.root);
  // Beside the tabs where there is room for both, else in the row of what is selected.
  const room = new ResizeObserver(() => {
    const width = shell.root.clientWidth;
    shell.root.classList.toggle("wb-slim", width > 0 && width < NARROW);
    if (width >= ROOMY) tabbar.append(find);
    else onStage.before(find);
  });
  room.observe(shell.root);
  shared.signal.addEventListener("abort", () => room.disconnect());
  context.onSettings(() => {
    const wanted = context.setting("view", made.present);
    if (wanted === made.present) return;
    made.open(wanted);
    if (made.bar.contains(document.activeElement)) made.focus(wanted);
  });
  context.onState(() => replace(figures, headline(context)));
  const first = context.setting("view", "");
  made.open(tabs.some(({ key }) => key === first) ? first : tabs[0].key);
}
