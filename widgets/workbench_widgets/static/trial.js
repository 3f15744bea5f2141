import { format, h, term } from "./common.js";

const WORDS = { added: "added", removed: "removed", more: "more bytes", less: "fewer bytes", same: "the same" };
const written = (spec) => `P(${spec.map((axes) => axes.join("+") || "-").join(", ")})`;
const copies = (count) => `${format.count(count)} device${count === 1 ? "" : "s"} per shard`;
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Every ordered choice of mesh axes, so that one dimension can be cut by several. */
function choices(axes) {
  const found = [[]], grow = (chosen) => { if (chosen.length < 3) for (const axis of axes) if (!chosen.includes(axis)) found.push([...chosen, axis]), grow([...chosen, axis]); };
  grow([]);
  return found.sort((a, b) => a.length - b.length).slice(0, 60);
}

/** What if arrays were sharded differently? Menus, sizes at once, and collectives once the kernel has compiled it. */
export function trialDesk(ctx) {
  const menus = h("div", { class: "wb-trial" }), desk = h("div", { class: "wb-desk", role: "group", "aria-label": "What if: other shardings" });
  const top = h("div", {}), sentence = h("p", { class: "wb-strong", role: "status" }), bottom = h("div", {}); // a spoken line must stay the same element
  desk.append(top, sentence, bottom);
  const changed = () => ctx.setting("specs", {});
  const sizes = Object.fromEntries(ctx.data.axes);
  let leaf = null;
  const specOf = (each) => changed()[each.path] ?? each.spec;

  function put(each, spec) {
    const { [each.path]: _, ...others } = changed();
    ctx.set("specs", same(spec, each.spec) ? others : { ...others, [each.path]: spec });
  }

  const parts = (spec) => spec.map((axes) => axes.reduce((n, axis) => n * sizes[axis], 1));
  const shardOf = (each, spec) => { const cut = parts(spec); return each.shape.map((size, d) => Math.ceil(size / cut[d])); };
  const bytesOf = (each, spec) => shardOf(each, spec).reduce((a, b) => a * b, each.itemsize);

  /** What keeps JAX from taking such a spec, in words. */
  function faults(each, spec) {
    const used = spec.flat(), twice = used.find((axis, i) => used.indexOf(axis) !== i);
    if (twice) return [`Mesh axis ${twice} is used twice; one array can use each axis once.`];
    const cut = parts(spec);
    return each.shape.flatMap((size, d) => (size % cut[d] ? [`${cut[d]} does not divide dimension ${d} (${size}): JAX refuses this spec for an input; pad to ${Math.ceil(size / cut[d]) * cut[d]}.`] : []));
  }

  function drawMenus() {
    if (!ctx.data.axes.length || !leaf || !leaf.shape.length) return menus.replaceChildren();
    const spec = specOf(leaf), options = choices(ctx.data.axes.map(([axis]) => axis)), wrong = faults(leaf, spec);
    const menu = leaf.shape.map((size, d) => h("label", {}, `dimension ${d} (${size}) `, h("select", { "aria-label": `mesh axes of dimension ${d}`, "data-dimension": d, onchange: (event) => put(leaf, spec.map((axes, at) => (at === d ? options[Number(event.target.value)] : axes))) },
      options.map((axes, i) => h("option", { value: i, selected: same(axes, spec[d]) }, axes.length ? axes.join(" × ") : "not cut")))));
    const pieces = parts(spec).reduce((a, b) => a * b, 1), moved = !same(spec, leaf.spec), arrow = (before, after) => (moved && before !== after ? `${before} → ${after}` : after);
    const rows = [["shard", arrow(`[${leaf.shard_shape.join(",")}]`, `[${shardOf(leaf, spec).join(",")}]`)], ["bytes per device", arrow(format.bytes(bytesOf(leaf, leaf.spec)), format.bytes(bytesOf(leaf, spec)))],
      ["replication", arrow(copies(ctx.data.device_count / parts(leaf.spec).reduce((a, b) => a * b, 1)), copies(ctx.data.device_count / pieces))]];
    const at = document.activeElement?.dataset?.dimension, inside = menus.contains(document.activeElement);
    menus.replaceChildren(h("h4", {}, "What if it were cut differently?"), h("div", { class: "wb-menu" }, menu),
      ...(wrong.length && moved ? wrong.map((text) => h("p", { class: "wb-note wb-wrong" }, text)) : [h("dl", { class: "wb-facts" }, rows.map(([name, value]) => [h("dt", {}, term(ctx, name)), h("dd", {}, value)]))]),
      moved ? h("button", { type: "button", class: "wb-link", onclick: () => put(leaf, leaf.spec) }, "Back to what it is") : "");
    if (inside && at !== undefined) menus.querySelector(`[data-dimension="${at}"]`)?.focus();
  }

  function verdict(state) {
    if (state.status === "failed") return h("p", { class: "wb-note wb-wrong", role: "alert" }, state.error?.message ?? "It failed.");
    if (state.status === "stopped") return h("p", { class: "wb-note" }, "Stopped.");
    return null;
  }

  function table(state) {
    if (!state.rows) return null;
    if (!state.rows.length) return h("p", { class: "wb-note" }, "No collectives, before or after.");
    const head = ["", "collective", "mesh axis", "stage", "runs", "bytes per device", "line"].map((title) => h("th", { scope: "col" }, title ? term(ctx, title) : h("span", { class: "wb-hidden" }, "change")));
    const pair = ([before, after]) => (before === after ? after : `${before} → ${after}`);
    const rows = state.rows.map((row) => h("tr", { "data-change": row.change, class: row.stage && row.stage === ctx.selection.stage ? "wb-selected" : "" },
      h("td", {}, h("span", { class: `wb-change wb-change-${row.change}` }, h("span", { "aria-hidden": "true" }, row.sign), " ", WORDS[row.change])),
      h("td", {}, h("button", { type: "button", class: "wb-link", onclick: () => ctx.select({ stage: row.stage ?? null, axis: row.axes[0] ?? null, line: row.line ?? null }) }, row.kind)),
      h("td", {}, row.axes.join(" × ") || "no mesh axis"), h("td", {}, row.stage ? `${row.stage} ${row.stage_name}` : "not in a stage"), h("td", { class: "wb-num" }, pair(row.runs)), h("td", { class: "wb-num" }, pair(row.bytes)), h("td", {}, row.source)));
    return h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Collectives before and after, table" }, h("table", { "aria-label": "Collectives before and after" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
  }

  function outcome(state) {
    if (!state?.status) return [];
    const how = state.how === "compiled" ? "what the compiler made of it" : "as Shardy plans it: sites in the program, a loop's counted once";
    const amounts = state.amounts?.length ? h("dl", { class: "wb-facts wb-amounts" }, state.amounts.map(([name, before, after]) => [h("dt", {}, name), h("dd", {}, before === after ? `${after}, the same` : `${before} → ${after}`)])) : null;
    return [
      state.rows ? h("p", { class: "wb-note" }, `Collectives of one call, ${how}.`) : null,
      table(state), amounts,
      state.notes?.length ? h("p", { class: "wb-note" }, state.notes.join(" ")) : null,
    ];
  }

  function drawDesk() {
    const specs = changed(), leaves = ctx.data.leaves.filter((each) => specs[each.path]), state = ctx.live("trial");
    const wrong = leaves.flatMap((each) => faults(each, specs[each.path]).map((text) => `${each.path}: ${text}`));
    const total = ctx.data.leaves.reduce((sum, each) => sum + bytesOf(each, specOf(each)), 0);
    const basket = leaves.map((each) => h("li", {}, h("code", {}, each.path), ` ${each.spec_text} → ${written(specs[each.path])} `, h("button", { type: "button", class: "wb-link", "aria-label": `Undo ${each.path}`, onclick: () => put(each, each.spec) }, "undo")));
    const tryIt = (compiled) => () => ctx.request("try_specs", { specs: Object.fromEntries(leaves.map((each) => [each.path, specs[each.path]])), compiled }).catch(() => {});
    const off = !leaves.length || wrong.length > 0;
    const actions = ctx.data.can_try
      ? h("div", { class: "wb-row" }, h("button", { type: "button", class: "wb-primary", disabled: off, onclick: tryIt(true) }, "Compile and compare"), h("button", { type: "button", disabled: off, onclick: tryIt(false) }, "Plan only"),
        h("span", { class: "wb-note" }, "Nothing runs; the kernel stays free meanwhile."))
      : h("p", { class: "wb-note" }, "To see collectives too, open this view with the program: wb.show(fn, *args, view=\"sharding\"). Sizes need no program.");
    const focused = document.activeElement, label = desk.contains(focused) ? focused.textContent : null;
    const busy = state?.status === "planning" || state?.status === "compiling";
    top.replaceChildren(h("h4", {}, "What if"), leaves.length ? h("ul", { class: "wb-basket" }, basket) : h("p", { class: "wb-note" }, "Choose other mesh axes for a dimension in the menus of an array: what that would cost shows here, before anything runs."),
      ...(leaves.length ? [h("p", { class: "wb-note" }, `All arguments: ${format.bytes(total)} on a device, now ${ctx.data.fullest}.`), ...wrong.map((text) => h("p", { class: "wb-note wb-wrong" }, text))] : []),
      leaves.length || state?.status ? actions : "",
      busy ? h("div", { class: "wb-row" }, h("span", { class: "wb-busy", "aria-hidden": "true" }), h("span", {}, `${state.phase} … ${format.seconds(state.seconds || 0)}`), h("button", { type: "button", onclick: () => ctx.request("stop_trial").catch(() => {}) }, "Stop")) : "",
      (state && verdict(state)) ?? "");
    if (sentence.textContent !== (state?.sentence ?? "")) sentence.textContent = state?.sentence ?? "";
    bottom.replaceChildren(...outcome(state).filter(Boolean));
    if (label) [...desk.querySelectorAll("button:not(:disabled)")].find((each) => each.textContent === label)?.focus();
    desk.setAttribute("aria-busy", String(busy));
  }

  ctx.listen("change:settings", () => { drawMenus(); drawDesk(); });
  ctx.onLive(drawDesk);
  ctx.onSelection(drawDesk);
  desk.hidden = !ctx.data.axes.length;
  drawDesk();
  return { menus, desk, show: (next) => { leaf = next; drawMenus(); }, isChanged: (each) => Boolean(changed()[each.path]) };
}
