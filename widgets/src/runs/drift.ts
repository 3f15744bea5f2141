// How far clients drift apart in a round: their paths from the server's parameters, in the plane that shows most of it.
import { button, h, menu, replace, s } from "../lib/dom";
import type { ClientDrift } from "../lib/states";
import type { ViewContext } from "../lib/view";
import { type Plane, planeOf, sentenceOf } from "./drift-data";

const HEIGHT = 300;
const BOX = { left: 58, top: 10, right: 14, bottom: 42 };
const HUES = 8;

const points = (path: readonly (readonly [number, number])[], { x, y }: Plane) =>
  path.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");

const mark = (value: number, step: number) => value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));

export class DriftPicture {
  readonly node = h("div", { class: "wb-tile", hidden: true });
  private readonly place = h("div", { class: "wb-drift" });
  private readonly said = h("p", { class: "wb-note", role: "status" });
  private readonly tools = h("div", { class: "wb-row" });
  private readonly show = button("Show the drift", () => this.ask());
  private drift: ClientDrift | null = null;
  private rounds: readonly number[] = [];
  private round = 0;

  constructor(private readonly context: ViewContext<"playground">) {
    const head = h("div", { class: "wb-row wb-loghead" }, h("h3", {}, "Client drift in one round"), this.tools);
    this.node.append(head, this.place, this.said);
    this.said.textContent =
      "Repeats the local training of a round of this run, and draws every client's parameters step by step.";
    const watch = new ResizeObserver(() => this.draw());
    watch.observe(this.place);
    context.signal.addEventListener("abort", () => watch.disconnect());
  }

  /** The rounds that the kernel kept the state of; a new run has others, and its picture is another. */
  offer(rounds: readonly number[]): void {
    this.node.hidden = !rounds.length || !this.context.hasKernel;
    if (rounds.join() === this.rounds.join()) return;
    if (rounds.length < this.rounds.length) {
      this.drift = null;
      replace(this.place);
    }
    this.rounds = rounds;
    if (!rounds.includes(this.round)) this.round = rounds[0] ?? 0;
    const choice = menu(
      "Round of the drift",
      rounds.map((round): [number, string] => [round, String(round + 1)]),
      this.round,
      (round) => {
        this.round = round;
        if (this.drift) this.ask();
      },
    );
    replace(this.tools, h("label", {}, "round ", choice), this.show);
  }

  private ask(): void {
    this.show.disabled = true;
    this.said.textContent = "Repeating the local training of this round";
    this.context
      .request("drift", { round: this.round })
      .then(
        (drift) => {
          this.drift = drift;
          this.said.textContent = sentenceOf(drift);
          this.draw();
        },
        (error) => (this.said.textContent = String((error as Error).message ?? error)),
      )
      .finally(() => (this.show.disabled = false));
  }

  private draw(): void {
    const { drift } = this;
    const width = Math.floor(this.place.clientWidth);
    if (!drift || width < 160) return;
    const box = {
      left: BOX.left,
      top: BOX.top,
      width: width - BOX.left - BOX.right,
      height: HEIGHT - BOX.top - BOX.bottom,
    };
    const plane = planeOf([[0, 0], ...drift.mean, ...drift.paths.flat()], box);
    const svg = s(
      "svg",
      { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": sentenceOf(drift) },
      this.axes(plane, box, drift),
      drift.paths.map((path, i) => this.client(path, plane, i, drift)),
      s("polyline", { points: points(drift.mean, plane), class: "wb-driftmean" }),
      this.dot(plane, [0, 0], 5, "the server's parameters", "wb-driftserver"),
      this.dot(plane, drift.mean[drift.mean.length - 1], 6, "the mean of all clients", "wb-driftend"),
    );
    const key = (look: string, text: string) =>
      h("span", { class: "wb-row" }, h("span", { class: `wb-key ${look}` }), text);
    const keys = h(
      "div",
      { class: "wb-row wb-keys", "aria-hidden": "true" },
      key("wb-driftkey-server", "server"),
      key("wb-driftkey-mean", "mean of all clients"),
      h("span", { class: "wb-note" }, "thin lines: one per client, with a dot per recorded step"),
    );
    replace(this.place, svg, keys);
  }

  private axes(
    plane: Plane,
    box: { left: number; top: number; width: number; height: number },
    drift: ClientDrift,
  ): SVGElement[] {
    const [right, bottom] = [box.left + box.width, box.top + box.height];
    const share = (i: number) => `${(100 * drift.shares[i]).toFixed(0)} % of the squared distances`;
    const vertical = plane.marksX.flatMap((value) => [
      s("line", { x1: plane.x(value), x2: plane.x(value), y1: box.top, y2: bottom, class: "wb-grid" }),
      s("text", { x: plane.x(value), y: bottom + 15, "text-anchor": "middle" }, mark(value, plane.step)),
    ]);
    const level = plane.marksY.flatMap((value) => [
      s("line", { x1: box.left, x2: right, y1: plane.y(value), y2: plane.y(value), class: "wb-grid" }),
      s("text", { x: box.left - 6, y: plane.y(value) + 4, "text-anchor": "end" }, mark(value, plane.step)),
    ]);
    const middle = box.top + box.height / 2;
    return [
      ...vertical,
      ...level,
      s("text", { x: right, y: bottom + 33, "text-anchor": "end" }, `first principal direction, ${share(0)}`),
      s(
        "text",
        { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` },
        `second, ${share(1)}`,
      ),
    ];
  }

  private client(path: ClientDrift["mean"], plane: Plane, i: number, drift: ClientDrift): SVGElement {
    const hue = this.context.theme.colour(`series-${i % HUES}`);
    const end = path[path.length - 1];
    const said = `client ${drift.clients[i]}: ${drift.apart[i].toPrecision(2)} from the mean`;
    return s(
      "g",
      { "data-client": drift.clients[i] },
      s("polyline", { points: points(path, plane), fill: "none", stroke: hue, "stroke-width": 1.4 }),
      path.map(([a, b]) => s("circle", { cx: plane.x(a), cy: plane.y(b), r: 1.8, fill: hue })),
      s("circle", { cx: plane.x(end[0]), cy: plane.y(end[1]), r: 4, fill: hue, "data-tip": said }),
    );
  }

  private dot(plane: Plane, [a, b]: readonly [number, number], r: number, tip: string, look: string): SVGElement {
    return s("circle", { cx: plane.x(a), cy: plane.y(b), r, class: look, "data-tip": tip });
  }
}
