import { clients } from "./clients.js";
import { h, roving, widget } from "./common.js";
import { cost } from "./cost.js";
import { devices } from "./devices.js";
import { hlo } from "./hlo.js";
import { mesh } from "./mesh.js";
import { program } from "./program.js";
import { run } from "./run.js";
import { sharding } from "./sharding.js";

const BUILDERS = { program, clients, mesh, sharding, hlo, cost, devices, run };

/** All views as tabs of one widget; what is chosen in one is chosen in all. A view is built when its tab is first opened. */
export function explorer(ctx) {
  const views = ctx.data.views, tabs = h("div", { class: "wb-tabs", role: "tablist", "aria-label": "Views" }), chosen = h("div", { class: "wb-chosen", role: "group", "aria-label": "What is chosen" });
  const id = `wb-${Math.random().toString(36).slice(2)}`, panes = new Map(), buttons = new Map();

  for (const { key, title, help } of views) {
    const button = h("button", { type: "button", role: "tab", id: `${id}-tab-${key}`, "aria-controls": `${id}-pane-${key}`, title: help, onclick: () => open(key, true) }, title);
    const pane = h("div", { role: "tabpanel", id: `${id}-pane-${key}`, "aria-labelledby": `${id}-tab-${key}`, hidden: true });
    buttons.set(key, button);
    panes.set(key, { node: pane, built: false });
    tabs.append(button);
  }
  ctx.root.append(tabs, chosen, ...[...panes.values()].map(({ node }) => node));
  const step = (move) => (tab, focus) => { const list = [...buttons.values()], next = list[(list.indexOf(tab) + move + list.length) % list.length]; focus(next); next.click(); };
  const focus = roving(tabs, [...buttons.values()], { choose: (tab) => tab.click(), step: { ArrowRight: step(1), ArrowLeft: step(-1), ArrowDown: step(1), ArrowUp: step(-1) } });

  function open(key, remember) {
    for (const [name, button] of buttons) {
      const is = name === key;
      button.setAttribute("aria-selected", String(is));
      button.setAttribute("tabindex", is ? "0" : "-1");
      panes.get(name).node.hidden = !is;
    }
    const pane = panes.get(key);
    if (!pane.built) {
      pane.built = true;
      try { BUILDERS[key](ctx.child(key, pane.node)); } catch (error) { ctx.fail(error); }
    }
    if (remember && ctx.setting("view") !== key) ctx.set("view", key);
  }

  /** What is chosen, each with a way to let go of it. */
  function follow() {
    const entries = Object.entries(ctx.selection);
    chosen.replaceChildren(...(entries.length ? entries.map(([kind, value]) => {
      const text = `${kind} ${kind === "line" ? String(value).replaceAll("\\", "/").split("/").pop() : value}`;
      return h("button", { type: "button", "aria-label": `Let go of ${text}`, onclick: () => ctx.select({ [kind]: null }) }, `${text} ×`);
    }) : [h("span", {}, "Nothing is chosen: choose a stage, a client, a device or an instruction, and every view follows.")]));
  }
  ctx.listen("change:settings", () => { const wanted = ctx.setting("view"); if (wanted && panes.has(wanted) && panes.get(wanted).node.hidden) open(wanted, false), focus(buttons.get(wanted)); });
  ctx.onSelection(follow);
  follow();
  const first = ctx.setting("view");
  open(panes.has(first) ? first : views[0].key, false);
}

export default widget(explorer);
