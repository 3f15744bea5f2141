// The chosen client over the rounds of a run, and over the local steps of the last one; asked of the kernel.
import { h, replace, s } from "../lib/dom";
import { formatCount } from "../lib/format";
import type { ClientMetricCourse } from "../lib/states";
import type { ViewContext } from "../lib/view";

const SIZE = { width: 300, height: 92, side: 8, head: 8, foot: 18 };

interface Line {
  values: readonly (number | null)[];
  look: string;
  dashed?: boolean;
}
/** An SVG path over values in their order, interrupted where one is missing. */
export function pathOf(
  values: readonly (number | null)[],
  x: (i: number) => number,
  y: (value: number) => number,
): string {
  let pen = false;
  return values
    .map((value, i) => {
      if (value === null) {
        pen = false;
        return "";
      }
      const part = `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = true;
      return part;
    })
    .join("");
}

function chart(label: string, first: string, last: string, lines: readonly Line[]): SVGSVGElement {
  const known = lines.flatMap(({ values }) => values.filter((value): value is number => value !== null));
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  const count = Math.max(...lines.map(({ values }) => values.length));
  const { width, height, side, head, foot } = SIZE;
  const x = (i: number) => side + ((width - 2 * side) * i) / Math.max(count - 1, 1);
  const y = (value: number) => head + (height - head - foot) * (1 - (value - low) / span);
  const paths = lines.map(({ values, look, dashed }) =>
    s("path", {
      d: pathOf(values, x, y) + (values.length === 1 ? "h4" : ""),
      class: look,
      fill: "none",
      "stroke-width": dashed ? 1.3 : 2,
      "stroke-dasharray": dashed ? "4 3" : null,
    }),
  );
  const text = (at: number, anchor: string, words: string) =>
    s("text", { x: at, y: height - 4, "font-size": 11, "text-anchor": anchor, class: "wb-fill-muted" }, words);
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "wb-chart", role: "img", "aria-label": label },
    paths,
    text(side, "start", first),
    text(width - side, "end", last),
  );
}

export class ClientCourse {
  readonly node = h("div", { class: "wb-courses" });
  private asked = false;
  private again = false;
  private shown: number | undefined;

  constructor(private readonly context: ViewContext<"clients">) {}

  /** One question at a time, however fast the rounds come. */
  show(client: number | undefined): void {
    this.shown = client;
    if (client === undefined || !(this.context.live("metrics") ?? []).length || !this.context.hasKernel)
      return replace(this.node);
    if (this.asked) {
      this.again = true;
      return;
    }
    this.asked = true;
    const end = () => {
      this.asked = false;
      if (!this.again) return;
      this.again = false;
      this.show(this.shown);
    };
    this.context
      .request("client_course", { client })
      .then(
        (found) => this.shown === client && this.draw(client, found),
        () => {},
      )
      .finally(end);
  }

  private draw(client: number, found: readonly ClientMetricCourse[]): void {
    const parts = found.map(({ name, rounds, values, mean, steps }) => {
      const last = values[values.length - 1];
      const said = last === null || last === undefined ? "not finite" : formatCount(last);
      const spoken = `${name} of client ${client}: ${said} after round ${rounds[rounds.length - 1]}`;
      const known = (list: readonly (number | null)[]) => list.some((value) => value !== null);
      const lines: Line[] = [
        { values: mean, look: "wb-stroke-muted", dashed: true },
        { values, look: "wb-stroke-clients" },
      ];
      const over = known(values) ? chart(spoken, `round ${rounds[0]}`, String(rounds[rounds.length - 1]), lines) : null;
      const local =
        steps.length > 1 && known(steps)
          ? chart(`${name} of client ${client} over ${steps.length} local steps`, "step 0", String(steps.length - 1), [
              { values: steps, look: "wb-stroke-reduce" },
            ])
          : null;
      return [
        h("h3", {}, `${name}: ${said}`),
        over,
        local ? h("p", { class: "wb-note" }, "and over the local steps of the last round:") : null,
        local,
      ];
    });
    replace(
      this.node,
      parts,
      found.length ? h("p", { class: "wb-note" }, "Measured. Dashed: the mean over all clients.") : null,
    );
  }
}
