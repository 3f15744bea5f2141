import { format, h, term } from "./common.js";

/** Sliders for another size of the program; the kernel estimates every number anew from the program's own records. */
export function whatIf(ctx, targets, drawStages) {
  const known = () => targets().filter((each) => each.scaling);
  if (!known().length) return null;
  const from = h("select", { "aria-label": "Starting from", onchange: () => { settle(); ask(); } });
  const chip = h("select", { "aria-label": "Chip of the estimate", onchange: () => ask() });
  const sliders = h("div", { class: "wb-sliders" }), results = h("div", { class: "wb-tiles", "aria-live": "polite" }), stages = h("div", {}), rests = h("div", {});
  const reset = h("button", { type: "button", onclick: () => { settle(); ask(); } }, "As it is");
  let base = null, inputs = {}, busy = false, again = false;

  function slider(name, label, values, now, unit) {
    const input = h("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: Math.max(0, values.indexOf(now)), "aria-label": label, disabled: values.length < 2 });
    const shown = h("output", {}), tell = () => { const text = unit(values[input.value]); shown.textContent = text; input.setAttribute("aria-valuetext", text); };
    input.addEventListener("input", () => { tell(); ask(); });
    tell();
    inputs[name] = () => values[input.value];
    return h("label", {}, h("span", {}, label), input, shown);
  }

  /** The sliders at the size that the program has. */
  function settle() {
    base = known().find((each) => each.target === from.value) ?? known()[0];
    const made = base.scaling, count = format.count;
    inputs = {};
    chip.replaceChildren(h("option", { value: "" }, made.chip_now ? `as it is: ${made.chip_now}` : "none: no seconds"), ...made.chips.map((name) => h("option", { value: name }, name)));
    sliders.replaceChildren(
      slider("clients", made.placement, made.clients, made.clients_now, count),
      slider("model", "model size", made.model, 1, (value) => (value === 1 ? "as it is" : `× ${value}`)),
      slider("chunk_size", `${made.placement} at once`, made.at_once, "as it is", (value) => (typeof value === "number" ? count(value) : `${value}: ${made.at_once_now}`)),
      slider("devices", made.axes ? `devices, along ${made.axes}` : "devices (no mesh axis carries the clients)", made.devices, made.devices_now, count));
  }

  const tile = (title, value, now, then, note, wrong) => h("div", { class: "wb-tile" }, h("h4", {}, title), h("div", { class: `wb-big${wrong ? " wb-wrong" : ""}` }, value),
    h("div", { class: "wb-note" }, [now && then && Math.abs(then / now - 1) > 1e-9 ? `× ${(then / now).toPrecision(3)} of ${base.target}` : now && then ? `as on ${base.target}` : "", note].filter(Boolean).join(" · ")));

  function draw(made) {
    const fit = made.fits === null ? "what a device has is not known" : made.fits ? `of ${format.bytes(made.available)}: fits` : `of ${format.bytes(made.available)}: DOES NOT FIT, ${format.bytes(made.peak - made.available)} too much`;
    results.replaceChildren(
      tile(["one call, ", term(ctx, "estimated")], made.seconds === null ? "unknown" : format.seconds(made.seconds), made.as_is.seconds, made.seconds, made.seconds === null ? "choose a chip" : made.chip),
      tile(["peak memory per device, ", term(ctx, "estimated")], made.peak === null ? "unknown" : format.bytes(made.peak), made.as_is.peak, made.peak, made.peak === null ? "nothing was compiled" : fit, made.fits === false),
      tile(["FLOPs per device, ", term(ctx, "estimated")], made.flops === null ? "unknown" : format.flops(made.flops), made.as_is.flops, made.flops, `${format.count(made.per_device)} ${base.scaling.placement} on the fullest device`),
      tile(["sent by one device, ", term(ctx, "estimated")], format.bytes(made.sent), made.as_is.sent, made.sent, made.idle ? `${format.count(made.idle)} of ${format.count(made.devices)} devices have nothing to do` : `${format.count(made.devices)} devices`));
    stages.replaceChildren(drawStages({ ...made, target: `${base.target}, estimated` }, Math.max(1e-30, ...made.stages.map((stage) => (made.seconds === null ? stage.flops : stage.seconds) ?? 0))));
    rests.replaceChildren(h("details", {}, h("summary", {}, "What the estimate rests on"), h("ul", { class: "wb-note" }, made.assumptions.map((each) => h("li", {}, each)))));
  }

  /** One question at a time; while it is answered only the newest of the others is kept. */
  function ask() {
    again = true;
    if (busy) return;
    const next = async () => {
      busy = true;
      while (again) {
        again = false;
        const at_once = inputs.chunk_size();
        const args = { target: base.target, clients: inputs.clients(), model: inputs.model(), devices: inputs.devices(), chunk_size: typeof at_once === "number" ? at_once : null, chip: chip.value || null };
        draw((await ctx.request("scale", args)).value);
      }
    };
    next().catch(() => {}).finally(() => (busy = false));
  }

  function offer() {
    const chosen = from.value;
    from.replaceChildren(...known().map((each) => h("option", { value: each.target, selected: each.target === chosen }, each.target)));
  }

  offer();
  settle();
  const section = h("details", { class: "wb-whatif" }, h("summary", {}, "What if: more clients, a larger model, fewer at once, more devices?"),
    h("div", { class: "wb-row wb-menus" }, h("label", {}, "starting from ", from), h("label", {}, "chip ", chip), reset), sliders, results, stages, rests);
  section.addEventListener("toggle", () => section.open && !results.childElementCount && ask());
  return { section, offer };
}
