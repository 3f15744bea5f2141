import { details, h, roving, term, widget } from "./common.js";
import { propagation } from "./propagation.js";
import { shards } from "./shards.js";
import { trialDesk } from "./trial.js";

/** Arrays cut over devices; what another spec would cost; and why each value of the program is cut as it is. */
export function sharding(ctx) {
  const arrays = h("div", {}), why = h("div", { hidden: true });
  const list = h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Arrays, table" }), picture = h("div", { class: "wb-wide" }), menus = h("div", { class: "wb-tools" });
  const panel = h("aside", { class: "wb-panel", "aria-live": "polite", "aria-label": "Details of the chosen array" });
  const modes = h("div", { class: "wb-modes", role: "group", "aria-label": "What to show" });
  let chosen = 0, desk = null, built = false, tried = null, number = 0, whyAgain = null;
  const cells = shards(ctx, picture, menus);

  function table() {
    const rows = ctx.data.leaves.map((leaf, i) => h("tr", { "data-leaf": i, class: i === chosen ? "wb-selected" : "" },
      h("td", {}, h("button", { type: "button", class: "wb-link", "aria-pressed": String(i === chosen) }, leaf.path), desk.isChanged(leaf) ? h("span", { class: "wb-note" }, " (what if)") : null), h("td", {}, leaf.type), h("td", {}, leaf.spec_text), ...leaf.rows.slice(3, 5).map(([, value]) => h("td", {}, value))));
    const head = h("tr", {}, ["array", "type", "spec", "per device", "replication"].map((title) => h("th", { scope: "col" }, term(ctx, title))));
    list.replaceChildren(h("table", { "aria-label": "Arrays and their shardings" }, h("thead", {}, head), h("tbody", {}, rows)));
  }

  function choose(index) {
    chosen = index;
    const leaf = ctx.data.leaves[index];
    table();
    cells.show(leaf, ctx.array(`sharding.${chosen}`));
    desk.show(leaf);
    const notes = [...leaf.notes, ...(leaf.left_out ? [`${leaf.left_out} shards are not drawn.`] : [])];
    details(ctx, panel, { title: leaf.path, kind: "clients", subtitle: leaf.type, blocks: [{ form: "facts", title: "", rows: leaf.rows }, ...(notes.length ? [{ form: "note", title: "Notes", text: notes.join(" ") }] : [])], extra: [desk.menus, h("p", { class: "wb-note wb-whole" }, `The whole tree: ${ctx.data.total}; the fullest device holds ${ctx.data.fullest}.`)] });
  }

  /** Arrays, or the propagation, which is built when it is first looked at. */
  function mode(name) {
    for (const button of modes.children) button.setAttribute("aria-pressed", String(button.dataset.mode === name));
    arrays.hidden = name === "why";
    why.hidden = name !== "why";
    if (name !== "why") return;
    ask();
    if (built) return;
    if (!(tried ?? ctx.data.propagation)) return why.replaceChildren(h("p", { class: "wb-note" }, "Nothing is known of the propagation of this program yet: try other specs first."));
    built = true;
    why.replaceChildren();
    const onData = (callback) => { ctx.onData(callback); whyAgain = callback; };
    propagation(Object.create(ctx, { root: { value: why }, data: { get: () => tried ?? ctx.data.propagation }, onData: { value: onData } }));
  }

  /** The propagation of what was tried last takes the place of the present one; only who looks at it asks for it. */
  function ask() {
    const trial = ctx.live("trial");
    if (trial?.status !== "done" || !trial.number || trial.number === number) return;
    number = trial.number;
    ctx.request("tried_propagation").then(({ value }) => { tried = value ?? tried; built ? whyAgain?.() : mode("why"); }, () => {});
  }

  function build() {
    if (!ctx.data.leaves.length) return arrays.replaceChildren(h("p", { class: "wb-note" }, "This tree holds no arrays."));
    desk = trialDesk(ctx);
    arrays.replaceChildren(h("div", { class: "wb-split" }, h("div", { class: "wb-pictures" }, h("div", { class: "wb-wide" }, list, menus, picture, desk.desk)), panel));
    const wanted = ctx.data.leaves.findIndex((leaf) => leaf.path === ctx.selection.leaf);
    choose(Math.max(0, wanted));
  }

  for (const [name, title] of [["arrays", "Arrays and what if"], ["why", "Why: propagation step by step"]])
    modes.append(h("button", { type: "button", "data-mode": name, onclick: () => { mode(name); ctx.set("mode", name); } }, title));
  const known = () => Boolean(ctx.data.can_try || ctx.data.propagation);
  modes.hidden = !known();
  ctx.root.append(modes, arrays, why);
  list.addEventListener("click", (event) => { const row = event.target.closest("[data-leaf]"); if (row) ctx.select({ leaf: ctx.data.leaves[Number(row.dataset.leaf)].path }), choose(Number(row.dataset.leaf)), list.querySelectorAll("button")[chosen].focus(); });
  ctx.onSelection(() => { const wanted = ctx.data.leaves.findIndex((leaf) => leaf.path === ctx.selection.leaf); wanted >= 0 && wanted !== chosen ? choose(wanted) : cells.draw(); });
  ctx.listen("change:settings", () => { if (desk) table(); mode(ctx.setting("mode", "arrays")); });
  ctx.onLive(() => { if (!why.hidden) ask(); });
  ctx.onTheme(cells.draw);
  ctx.onData(build);
  build();
  mode(known() ? ctx.setting("mode", "arrays") : "arrays");
}

export default widget(sharding);
