import { format, h } from "./common.js";

const OVER = { done: "Compiled", stopped: "Stopped", failed: "Failed" };

/** Chooses hardware that is not here, compiles for it in the background, shows how far that is, and stops it. */
export function compilePanel(ctx) {
  const chips = ctx.data.elsewhere;
  if (!chips?.length) return null;
  const option = (value, text, selected) => h("option", { value, selected }, text);
  const chip = h("select", { "aria-label": "Chip" }, chips.map((each) => option(each.chip, `${each.chip}${each.install ? " (compiler not installed)" : ""}`)));
  const target = h("select", { "aria-label": "Machine" });
  const order = h("select", { "aria-label": "Order of devices" }, option("topology", "as the topology prefers"), option("naive", "naive: as they come"));
  const compile = h("button", { type: "button", class: "wb-primary", onclick: () => ctx.request("compile", { target: target.value, order: order.value }).catch(() => {}) }, "Compile");
  const stop = h("button", { type: "button", onclick: () => ctx.request("stop").then(() => ctx.say("Stopping: the compiler's process is being ended."), () => {}) }, "Stop");
  const bar = h("div", { class: "wb-progress wb-busy", role: "progressbar", "aria-label": "Compilation" }, h("div", {})), words = h("span", { role: "status" });
  const progress = h("div", { class: "wb-row", hidden: true }, words, bar, stop), note = h("p", { class: "wb-note" });
  const chosen = () => chips.find((each) => each.chip === chip.value);

  function offer() {
    const { targets, install, terms, description } = chosen(), middle = targets[Math.floor(targets.length / 2)];
    target.replaceChildren(...targets.map((name) => option(name, name, name === middle)));
    note.replaceChildren(`${description}. ${install ? "Its compiler is not installed: " : targets.length ? "Compiled by the vendor's own compiler in a process of its own; nothing runs there. " : "None of its machines fits the axes of this mesh. "}`,
      ...(install ? [h("code", {}, install)] : []), ` (${terms})`);
    follow();
  }

  function follow() {
    const job = ctx.live("job"), running = job?.status === "running";
    compile.disabled = running || Boolean(chosen().install) || !target.value;
    progress.hidden = !job;
    stop.hidden = bar.hidden = !running;
    if (!job) return;
    const said = job.error ? `: ${job.error.message.replace(/^\w+Error: /, "")}` : "";
    words.textContent = running ? `${job.target}: ${job.phase}, ${job.seconds.toFixed(0)} s` : `${OVER[job.status]}: ${job.target}${said}`;
    words.classList.toggle("wb-wrong", job.status === "failed");
  }

  const ready = chips.filter((each) => !each.install && each.targets.length), first = ready.find((each) => each.chip === "v5e") ?? ready[0];
  chip.value = (first ?? chips.find((each) => each.chip === "v5e") ?? chips[0]).chip;
  chip.addEventListener("change", offer);
  ctx.onLive(follow);
  offer();
  const label = (text, node) => h("label", {}, text, " ", node);
  return h("section", { class: "wb-tile wb-compile", "aria-label": "Compile for hardware that is not here" },
    h("h4", {}, "Compile for hardware that is not here"), h("div", { class: "wb-row" }, label("chip", chip), label("machine", target), label("devices", order), compile), progress, note);
}

/** One column per target: does it fit, what does it need, how long would it take, which strategy do collectives use. */
export function sideBySide(ctx, targets, compiled) {
  if (targets.length < 2) return null;
  const axes = [...new Set(targets.flatMap((each) => Object.keys(each.strategies)))];
  const wired = [...new Set(targets.flatMap((each) => each.stages.flatMap((stage) => Object.keys(stage.wire))))];
  const wire = (each, axis) => each.stages.reduce((sum, stage) => sum + (stage.wire[axis] ?? 0), 0);
  const rows = [
    ["mesh", (each) => each.mesh || "none"],
    ["fits", (each) => each.fits === null ? "unknown" : each.fits ? "yes" : `NO: ${format.bytes(each.peak - each.available)} too much`],
    ["peak memory per device", (each) => each.peak === null ? "unknown" : format.bytes(each.peak) + (each.available === null ? "" : ` of ${format.bytes(each.available)}`)],
    ["FLOPs per device", (each) => format.flops(each.flops)],
    ["one call, predicted", (each) => (each.seconds === null ? "unknown" : format.seconds(each.seconds))],
    ...wired.map((axis) => [`sent over ${axis}`, (each) => format.bytes(wire(each, axis))]),
    ...axes.map((axis) => [`strategy over ${axis}`, (each) => each.strategies[axis] ?? "not told"]),
  ];
  const forget = (name) => h("button", { type: "button", "aria-label": `Take ${name} out`, onclick: () => ctx.request("forget", { target: name }).catch(() => {}) }, "×");
  const head = targets.map((each) => h("th", { scope: "col" }, each.target, " ", compiled.has(each.target) ? forget(each.target) : null));
  return h("section", { "aria-label": "Targets side by side" }, h("h4", {}, "Targets side by side"),
    h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Targets side by side, table" },
      h("table", { class: "wb-sides" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "per device"), head)),
        h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), targets.map((each) => h("td", { class: name === "fits" && each.fits === false ? "wb-wrong" : "" }, value(each)))))))));
}
