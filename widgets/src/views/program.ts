// The stages as pictures, with a panel about the chosen stage or client.

import { showDetails } from "../lib/details";
import { button, h, menu, replace } from "../lib/dom";
import { formatAs } from "../lib/format";
import { paintCells } from "../lib/pixels";
import { position, range, suitsLog } from "../lib/scale";
import { split } from "../lib/split";
import type { ClientsState } from "../lib/states";
import { css, legend, ramp } from "../lib/theme";
import type { RenderView, ViewContext } from "../lib/view";
import { clientDetails } from "./clients-data";
import { clientOf, drawPicture, type Heat } from "./program-picture";

const CLIENT = "[data-client]";
const PICTURE = 650; // pixels: a picture in its own size, with its margins and a scroll bar

/** Buttons to the clients before and after, and to one by number. */
export function clientSteps(context: ViewContext<"program">, client: number, count: number): HTMLElement {
  const go = (next: number) => context.select({ client: Math.min(Math.max(next, 0), count - 1) });
  const number = h("input", {
    type: "number",
    min: 0,
    max: count - 1,
    value: client,
    "aria-label": "Client number",
    class: "wb-short",
  });
  number.addEventListener("change", () => go(Number(number.value)));
  return h(
    "div",
    { class: "wb-row wb-steps" },
    button("‹ Previous", () => go(client - 1)),
    number,
    button("Next ›", () => go(client + 1)),
  );
}

class Program {
  private readonly pictures = h("div", { class: "wb-pictures wb-scrolls" });
  private readonly tools = h("div", { class: "wb-tools" });
  private readonly legendBox = h("span", { class: "wb-legendbox" });
  private readonly detail: HTMLElement;
  private stages: SVGElement[] = [];
  private heat: Heat[] = [];
  private values: Float32Array[] = [];
  private metric = 0;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"program">,
  ) {
    const share = context.state("pictures").length > 1 ? 0.74 : 0.55; // next to its gradient
    const { node, main, detail } = split(context, "Details of the selected stage or client", share, PICTURE);
    this.detail = detail;
    main.append(this.tools, this.pictures);
    host.append(node);
    context.onSelection(() => this.follow());
    context.onState(() => this.build());
    context.theme.onChange(() => this.paint());
    this.build();
  }

  private get clients(): ClientsState {
    return this.context.state("clients");
  }

  private build(): void {
    const { columns } = this.clients;
    this.values = columns.map((column) => this.context.array(`clients.${column.key}`));
    const varied = columns.map((_, i) => i).filter((i) => range(this.values[i])[1] > range(this.values[i])[0]);
    this.metric = varied[0] ?? 0;
    const choose = menu(
      "Colour clients by",
      varied.map((i) => [i, columns[i].label] as const),
      this.metric,
      (i) => {
        this.metric = i;
        this.paint();
      },
    );
    this.tools.hidden = !varied.length;
    replace(this.tools, h("label", {}, "Colour clients by ", choose), this.legendBox);
    const made = this.context.state("pictures");
    const drawn = made.map((each) =>
      drawPicture(
        each,
        made.length > 1,
        (stage, client) => this.choose(stage, client),
        () => this.choose(null, null),
      ),
    );
    this.stages = drawn.flatMap(({ stages }) => stages);
    this.heat = drawn.flatMap(({ heat }) => heat);
    replace(
      this.pictures,
      drawn.map(({ node }) => node),
    );
    this.paint();
    this.follow();
  }

  private choose(stage: string | null, client: number | null): void {
    this.context.select({ stage, client });
    this.follow();
  }

  private paint(): void {
    const column = this.clients.columns[this.metric];
    const values = this.values[this.metric] ?? new Float32Array();
    const [low, high] = range(values);
    const flat = !(high > low);
    const log = suitsLog(values);
    const share = (value: number) => (Number.isFinite(value) ? position(value, low, high, log) : Number.NaN);
    for (const dot of this.pictures.querySelectorAll<SVGElement>(CLIENT))
      dot.style.fill = flat ? "" : css(ramp(share(values[clientOf(dot)])));
    for (const { canvas, first, count, across } of this.heat) {
      canvas.hidden = flat;
      if (!flat) paintCells(canvas, across, values.subarray(first, first + count).map(share));
    }
    replace(
      this.legendBox,
      flat ? null : legend(log ? "log" : "", formatAs(column.unit, low), formatAs(column.unit, high)),
    );
  }

  private mark(): void {
    const { stage, client, line } = this.context.selection;
    const lines = this.context.state("lines");
    const here = stage ? lines[stage] : line;
    for (const node of this.stages) {
      const key = node.dataset.key ?? "";
      const chosen = key === stage;
      node.classList.toggle("wb-selected", chosen);
      node.classList.toggle("wb-kin", !chosen && here !== undefined && lines[key] === here); // of the same line
      node.setAttribute("aria-selected", String(chosen));
    }
    for (const wire of this.pictures.querySelectorAll<SVGElement>(".wb-wire"))
      wire.classList.toggle("wb-related", wire.dataset.key1 === stage || wire.dataset.key2 === stage);
    for (const dot of this.pictures.querySelectorAll(CLIENT)) {
      dot.classList.toggle("wb-selected", clientOf(dot) === client);
      dot.setAttribute("aria-selected", String(clientOf(dot) === client));
    }
  }

  private follow(): void {
    this.mark();
    const { stage, client } = this.context.selection;
    const { clients } = this;
    const known = this.context.state("stages");
    if (client === undefined || client >= clients.count) {
      const made = stage === undefined ? undefined : known[stage];
      return showDetails(this.context, this.detail, made ?? this.context.state("overview"));
    }
    const back =
      stage && known[stage]
        ? button(`Back to ${known[stage].title}`, () => this.choose(stage, null), { class: "wb-link" })
        : null;
    const extra = [clientSteps(this.context, client, clients.count), back];
    showDetails(this.context, this.detail, { ...clientDetails(clients, this.values, client), extra });
  }
}

export const program: RenderView<"program"> = (host, context) => {
  new Program(host, context);
};
