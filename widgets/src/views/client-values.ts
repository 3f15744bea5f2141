// Every value of one client, drawn by treescope in a frame of its own, which can reach neither the page nor a network.
import { button, h, replace } from "../lib/dom";
import { formatSeconds } from "../lib/format";
import type { ViewContext } from "../lib/view";

const NAMES = ["bg", "panel", "raised", "line", "fg", "muted", "accent", "good", "bad", "reduce"];
const POLICY =
  "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; style-src 'unsafe-inline'; " +
  "img-src data: blob:; font-src data:";
const HEIGHTS = { least: 80, most: 900 };
const SCROLLBAR = 20; // pixels below: of the bar that scrolls long lines
// treescope 0.1.10 knows light pages only; these are its own classes in colours of the page.
const DRESS = `
.treescope_root { background: transparent; color: var(--fg); padding-bottom: 2px; }
.color_string { color: var(--bad); } .color_number { color: var(--good); }
.color_keyword { color: var(--accent); } .color_abbrev { color: var(--reduce); }
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
const dress = () => document.querySelectorAll("treescope-container").forEach(({ shadowRoot }) => {
  if (shadowRoot && !shadowRoot.adoptedStyleSheets.length) shadowRoot.adoptedStyleSheets = [sheet];
});
dress(); new MutationObserver(dress).observe(document.body, { childList: true, subtree: true });
addEventListener("message", ({ source, data }) => {
  if (source === parent && data?.wbStyle) document.documentElement.style.cssText = data.wbStyle;
});
new ResizeObserver(() => parent.postMessage({ wbHeight: document.documentElement.offsetHeight }, "*")).observe(document.documentElement);`;

/** The colours of the page around, for the frame: nothing of that page's style reaches into it. */
function style(context: ViewContext<"clients">, node: Element): string {
  const scheme = getComputedStyle(node).colorScheme;
  const colours = NAMES.map((name) => `--${name}: ${context.theme.colour(name)}`).join("; ");
  return `color-scheme: ${scheme}; background: ${context.theme.colour("bg")}; color: ${context.theme.colour("fg")}; ${colours}`;
}

const page = (html: string, own: string): string =>
  `<!doctype html><html lang="en" style="${own.replaceAll('"', "'")}"><head><meta charset="utf-8">` +
  `<meta http-equiv="Content-Security-Policy" content="${POLICY}"><style>body{margin:8px}</style></head>` +
  `<body>${html}<script>${SCRIPT}</${"script"}></body></html>`;

export class ClientValues {
  private stop: AbortController | null = null;

  constructor(
    private readonly context: ViewContext<"clients">,
    private readonly place: HTMLElement,
    private readonly opened: (open: boolean) => void,
  ) {
    const fit = (event: MessageEvent<{ wbHeight?: number }>) => {
      const frame = this.frame;
      if (!frame || !event.source || event.source !== frame.contentWindow || !Number.isFinite(event.data?.wbHeight))
        return;
      frame.style.height = `${Math.min(Math.max((event.data.wbHeight ?? 0) + SCROLLBAR, HEIGHTS.least), HEIGHTS.most)}px`;
      if (frame.dataset.revealed) return;
      frame.dataset.revealed = "yes"; // only now it is high enough to be scrolled to the top
      this.reveal();
    };
    window.addEventListener("message", fit, { signal: context.signal });
    context.theme.onChange(() => this.frame?.contentWindow?.postMessage({ wbStyle: style(context, place) }, "*"));
  }

  private get frame(): HTMLIFrameElement | null {
    return this.place.querySelector("iframe");
  }

  close(): void {
    this.stop?.abort();
    this.stop = null;
    replace(this.place);
    this.place.hidden = true;
    this.opened(false);
  }

  open(client: number, name: string): void {
    this.stop?.abort();
    const stop = new AbortController();
    this.stop = stop;
    const title = `Values of ${name}`;
    const said = h("span", { role: "status" }, "Evaluating the program: this client runs one operation at a time …");
    const busy = h(
      "div",
      { class: "wb-progressline" },
      h("span", { class: "wb-wheel", "aria-hidden": "true" }),
      said,
      button("Stop", () => this.close()),
    );
    this.place.hidden = false;
    replace(this.place, h("h3", {}, title), busy);
    this.reveal();
    const began = performance.now();
    let phase = "Evaluating the program: this client runs one operation at a time";
    const tell = () => {
      const seconds = Math.round((performance.now() - began) / 1000);
      said.textContent = `${phase} … ${seconds ? formatSeconds(seconds) : ""}`;
    };
    const clock = setInterval(tell, 1000);
    this.context
      .request(
        "open_client",
        { client },
        {
          signal: stop.signal,
          onProgress: (told) => {
            phase = told.phase;
            tell();
          },
        },
      )
      .then(
        (value) => this.show(title, value),
        () => this.stop === stop && this.close(),
      )
      .finally(() => clearInterval(clock));
  }

  /** Scrolls the details alone: the notebook stays where it is. */
  private reveal(): void {
    const detail = this.place.closest(".wb-detail");
    if (detail) detail.scrollTop += this.place.getBoundingClientRect().top - detail.getBoundingClientRect().top - 8;
  }

  private show(title: string, value: { html: string; text: string }): void {
    const frame = h("iframe", {
      class: "wb-values",
      sandbox: "allow-scripts",
      title: `${title}, foldable`,
      srcdoc: page(value.html, style(this.context, this.place)),
    });
    const text = h(
      "details",
      {},
      h("summary", {}, "As text"),
      h("pre", { tabindex: 0, role: "region", "aria-label": `${title} as text` }, value.text),
    );
    replace(
      this.place,
      h(
        "div",
        { class: "wb-row" },
        h("h3", {}, title),
        button("Close", () => this.close()),
      ),
      frame,
      text,
    );
    this.opened(true);
    this.reveal();
    this.context.say(`${title} are shown.`);
  }
}
