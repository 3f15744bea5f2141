// The call tree as the operations view and the inspector read it: names, figures, layers, the way down to a node.
import { formatAs, formatCount } from "../lib/format";
import type { FigureColumn, OperationsState } from "../lib/states";
import { pathTo } from "../lib/tree";
import type { Reader, Selection } from "../lib/view";
import { type Tree, treeFrom } from "./icicle";
import { extremes } from "./layers";

const WHOLE = new Set(["measured", "peak", "constants"]); // what a loop of unknown length leaves whole
const ADDED = new Set(["predicted", "flops", "traffic", "sent", "peak"]); // not the slowest device's measured seconds
const PASS_WORDS: Record<string, string> = { transpose: "backward", remat: "recomputed", mixed: "" };
const MOST_SHARES = 3; // in a sentence
const LEAST_SHARE = 0.01;

export class Calls {
  readonly names: OperationsState["names"];
  readonly keys: OperationsState["keys"];
  readonly places: OperationsState["places"];
  readonly scopes: OperationsState["scopes"];
  readonly kinds: readonly string[];
  readonly passes: readonly string[];
  readonly instructions: OperationsState["instructions"];
  readonly collectives: OperationsState["collectives"];
  readonly tree: Tree;
  readonly columns: readonly FigureColumn[];
  readonly totals: Float32Array[];
  readonly own: Float32Array[];
  /** Rows of several equal layers. */
  readonly layers: OperationsState["layers"];
  /** Of an unknown number of iterations one is counted. */
  readonly atLeast: ReadonlySet<number>;
  private holders: Map<string, number> | undefined;

  constructor(readonly reader: Reader<"operations">) {
    this.names = reader.state("names");
    this.keys = reader.state("keys");
    this.places = reader.state("places");
    this.scopes = reader.state("scopes");
    const [kinds, passes] = [reader.state("kinds"), reader.state("passes")];
    this.kinds = Array.from(reader.array("tree.kind"), (i) => kinds[i]);
    this.passes = Array.from(reader.array("tree.pass"), (i) => passes[i]);
    this.instructions = reader.state("instructions");
    this.collectives = reader.state("collectives");
    this.tree = treeFrom(reader.array("tree.parent"));
    this.columns = reader.state("columns");
    this.layers = reader.state("layers") ?? {};
    this.atLeast = new Set(reader.state("at_least") ?? []);
    this.totals = this.columns.map(({ key }) => reader.array(`tree.${key}`));
    this.own = this.columns.map(({ key }) => reader.array(`tree.${key}.own`));
  }

  /** What the figures add up. */
  get counted(): string {
    const all = this.reader.state("made_from") === "jaxpr";
    return (
      this.reader.state("counted") ?? (all ? "not compiled: figures of all devices together" : "one device, one call")
    );
  }

  value(column: number, node: number): number {
    return this.totals[column]?.[node] || 0;
  }

  isLeast(column: number, node: number): boolean {
    return this.atLeast.has(node) && !WHOLE.has(this.columns[column].key);
  }

  title(node: number): string {
    const pass = PASS_WORDS[this.passes[node]];
    const iterations = this.reader.state("iterations")[node];
    const parent = this.tree.parent[node];
    const said = pass && (parent < 0 || this.passes[parent] !== this.passes[node]) ? ` (${pass})` : "";
    return `${this.names[node]}${iterations === undefined ? "" : ` × ${formatCount(iterations)}`}${said}`;
  }

  /** Least and most of a figure over equal layers, and which layer has the most, where they differ. */
  spread(column: number, members: readonly number[]): string {
    const [least, most] = extremes(members.map((member) => this.totals[column][member]));
    const text = (at: number) => formatAs(this.columns[column].unit, this.totals[column][members[at]]);
    if (text(least) === text(most)) return `${text(least)}, all equal`;
    return `${text(least)} in ${this.names[members[least]]} to ${text(most)} in ${this.names[members[most]]}`;
  }

  /** The largest shares that a node has in the program's figures, as a sentence. */
  sentence(node: number): string {
    const share = (i: number) => this.value(i, node) / (this.totals[i][0] || Number.POSITIVE_INFINITY);
    const largest = this.columns
      .map((_, i) => i)
      .filter((i) => share(i) >= LEAST_SHARE && !this.isLeast(i, 0))
      .sort((a, b) => share(b) - share(a))
      .slice(0, node > 0 ? MOST_SHARES : 0);
    const parts = largest.map((i) => `${(100 * share(i)).toFixed(0)} % of ${this.columns[i].title}`);
    return parts.length ? `${parts.join(", ")}.` : "";
  }

  /** The figures of all nodes that match, added; a node inside of another match is part of it. */
  together(matches: (node: number) => boolean): string {
    const inside = new Uint8Array(this.names.length);
    const outermost: number[] = [];
    for (const node of this.tree.order) {
      const parent = this.tree.parent[node];
      const isPart = parent >= 0 && inside[parent] === 1;
      if (!isPart && matches(node)) outermost.push(node);
      inside[node] = isPart || outermost.at(-1) === node ? 1 : 0;
    }
    const isSummed = this.columns.some(({ key }) => key === "sent");
    const parts = this.columns.map(({ key, title, unit }, i) => {
      const sum = outermost.reduce((amount, node) => amount + this.totals[i][node], 0);
      if (sum === 0 || !(ADDED.has(key) || (key.startsWith("sent/") && !isSummed))) return "";
      if (Number.isNaN(sum)) return `${title} unknown`;
      const least = outermost.some((node) => this.isLeast(i, node)) ? "at least " : "";
      return `${least}${formatAs(unit, sum)}${unit === "flops" ? "" : ` ${title}`}`;
    });
    return parts.filter(Boolean).join(", ");
  }

  /** What a node stands in, from the outside in, without the program itself. */
  path(node: number): number[] {
    return pathTo(this.tree, node).filter((each) => this.kinds[each] !== "root");
  }

  /** The chosen node; else the one of a line or an instruction that was chosen in another view. */
  chosen({ node, line, instruction }: Selection): number | null {
    if (node !== undefined && Number(node) < this.names.length) return Number(node);
    this.holders ??= new Map(
      Object.entries(this.instructions).flatMap(([at, names]) => names.map((name): [string, number] => [name, +at])),
    );
    const holder = instruction ? this.holders.get(instruction) : undefined;
    if (holder !== undefined) return holder;
    if (!line) return null;
    const same = this.keys.map((_, i) => i).filter((i) => this.keys[i] === line);
    return same.sort((a, b) => this.value(0, b) - this.value(0, a))[0] ?? null;
  }

  notes(node: number): string[] {
    const shared = this.reader.state("shared").includes(node);
    return [
      ...(shared
        ? [
            "The compiler fused or combined instructions of several lines: this node counts only the part of its own line.",
          ]
        : []),
      ...(this.atLeast.has(node) ? ["Contains a loop of unknown length; one iteration is counted."] : []),
      ...(node === 0 ? this.reader.state("notes") : []),
    ];
  }
}
