import { colour, h } from "./common.js";

const NAMES = ["bg", "panel", "raised", "line", "fg", "muted", "accent", "good", "bad", "reduce"];
const POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; style-src 'unsafe-inline'; img-src data: blob:; font-src data:";
// treescope 0.1.10 knows light pages only; these are its own classes in colours of the page. What it draws in black lines
// around arrays are pictures, which keep their colours.
const DRESS = `
.treescope_root { background: transparent; color: var(--fg); padding-bottom: 2px; }
.color_string { color: var(--bad); } .color_number { color: var(--good); } .color_keyword { color: var(--accent); } .color_abbrev { color: var(--reduce); }
.color_comment, .color_comment a:not(:hover), .color_comment_when_expanded, .loading_message, .info, .info input,
.foldable_node > label::before, .copybutton > span::before, .copybutton.was_clicked > span::after { color: var(--muted) !important; }
.foldable_node > label:hover::before, .copybutton:hover > span::before, .copybutton:hover > span::after { color: var(--accent) !important; }
.stacked_children { border-color: var(--line) !important; }
.arrayviz_container .hovertip { background: var(--panel); border-color: var(--line); color: var(--fg); }
.arrayviz_container input { background: var(--bg); border: 1px solid var(--line); }
.arrayviz_container [style*="solid black"] { border-color: var(--muted) !important; outline-color: var(--muted) !important; }
.color_abbrev *, .color_comment * { color: inherit; }`;
const SCRIPT = `
const sheet = new CSSStyleSheet(); sheet.replaceSync(${JSON.stringify(DRESS)});
const dress = () => document.querySelectorAll("treescope-container").forEach(({ shadowRoot }) => { if (shadowRoot && !shadowRoot.adoptedStyleSheets.length) shadowRoot.adoptedStyleSheets = [sheet]; });
dress(); new MutationObserver(dress).observe(document.body, { childList: true, subtree: true });
addEventListener("message", ({ source, data }) => { if (source === parent && data?.wbStyle) document.documentElement.style.cssText = data.wbStyle; });
new ResizeObserver(() => parent.postMessage({ wbHeight: document.documentElement.offsetHeight }, "*")).observe(document.documentElement);`;

/** The colours of the page around, for the frame: nothing of that page's style reaches into it. */
const style = (node) => `color-scheme: ${getComputedStyle(node).colorScheme}; background: ${colour(node, "bg")}; color: ${colour(node, "fg")}; ${NAMES.map((name) => `--${name}: ${colour(node, name)}`).join("; ")}`;

const page = (html, own) => `<!doctype html><html lang="en" style="${own.replaceAll('"', "'")}"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${POLICY}"><style>body{margin:8px}</style></head><body>${html}<script>${SCRIPT}</` + "script></body></html>";

/** Every value of one client, drawn by treescope in a frame of its own, which can reach neither the page nor a network. */
export function opening(ctx, place) {
  let number = 0;
  const framed = () => place.querySelector("iframe");
  const fit = (event) => {
    if (event.source === framed()?.contentWindow && event.source && Number.isFinite(event.data?.wbHeight)) framed().style.height = `${Math.min(Math.max(event.data.wbHeight + 4, 80), 640)}px`;
  };
  window.addEventListener("message", fit);
  ctx.cleanup(() => window.removeEventListener("message", fit));
  ctx.onTheme(() => framed()?.contentWindow?.postMessage({ wbStyle: style(place) }, "*"));
  return (client) => {
    const mine = ++number;
    place.replaceChildren(h("h4", {}, `Values of client ${client}`), h("p", { class: "wb-note", role: "status" }, "Evaluating the program, this client operation by operation …"));
    ctx.request("open_client", { client }).then(({ value }) => {
      if (mine !== number) return;
      const frame = h("iframe", { class: "wb-values", sandbox: "allow-scripts", title: `Values of client ${client}, foldable`, srcdoc: page(value.html, style(place)) });
      const text = h("details", {}, h("summary", {}, "As text"), h("pre", { tabindex: 0, role: "region", "aria-label": `Values of client ${client} as text` }, value.text));
      const close = h("button", { type: "button", onclick: () => { number++; place.replaceChildren(); } }, "Close");
      place.replaceChildren(h("div", { class: "wb-row" }, h("h4", {}, `Values of client ${client}`), close), frame, text);
      ctx.say(`The values of client ${client} are shown below.`);
    }, () => { if (mine === number) place.replaceChildren(); });
  };
}
