// Who holds what: one bar per client, as high as it has examples, cut by label.
import { h } from "../lib/dom";
import { formatCount } from "../lib/format";
import type { ViewContext } from "../lib/view";

const HEIGHT = 120;

/** Mean share of the most frequent label of a client: 1 / labels without skew, 1 where each holds one label. */
export function dominance(counts: readonly (readonly number[])[]): number {
  const shares = counts
    .map((row) => [Math.max(...row), row.reduce((sum, each) => sum + each, 0)])
    .filter(([, total]) => total > 0)
    .map(([most, total]) => most / total);
  return shares.reduce((sum, each) => sum + each, 0) / (shares.length || 1);
}

export class Holdings {
  readonly node = h("div", { class: "wb-tile" });
  private readonly canvas = h("canvas", { class: "wb-holdings", role: "img", "aria-label": "Labels per client" });
  private readonly said = h("p", { class: "wb-note", role: "status" });
  private counts: readonly (readonly number[])[] = [];

  constructor(private readonly context: ViewContext) {
    this.node.append(h("h3", {}, "Labels per client"), this.canvas, this.said);
    const watch = new ResizeObserver(() => this.draw());
    watch.observe(this.node);
    context.signal.addEventListener("abort", () => watch.disconnect());
    context.theme.onChange(() => this.draw());
  }

  show(counts: readonly (readonly number[])[]): void {
    this.counts = counts;
    const totals = counts.map((row) => row.reduce((sum, each) => sum + each, 0));
    const range = `${formatCount(Math.min(...totals))} to ${formatCount(Math.max(...totals))} examples`;
    const share = `${(100 * dominance(counts)).toFixed(0)} %`;
    const clients = `${formatCount(counts.length)} clients with ${range}`;
    const said = `${clients}; on average, ${share} of a client's examples have the client's most frequent label.`;
    this.said.textContent = said;
    this.canvas.setAttribute("aria-label", `Labels per client: ${said}`);
    this.draw();
  }

  private draw(): void {
    const { canvas, counts, context } = this;
    const width = this.node.clientWidth - 26;
    const pen = canvas.getContext("2d");
    if (!pen || width < 20 || !counts.length) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const top = Math.max(...counts.map((row) => row.reduce((sum, each) => sum + each, 0)));
    const each = width / counts.length;
    counts.forEach((row, client) => {
      let y = HEIGHT;
      row.forEach((count, label) => {
        const high = (count / top) * HEIGHT;
        pen.fillStyle = context.theme.colour(`series-${label % 8}`);
        pen.globalAlpha = label < 8 ? 1 : 0.45; // ten digits, eight hues
        pen.fillRect(client * each, y - high, Math.max(each - 1, 0.5), high);
        y -= high;
      });
    });
    pen.globalAlpha = 1;
  }
}
