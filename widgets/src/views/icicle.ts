// A tree as nested bars: a bar is as wide as its figure, what is inside of it hangs below.
import { type Tree, treeFrom } from "../lib/tree";

export interface Bar {
  /** The largest of `nodes`. */
  node: number;
  /** Of several equal layers the nodes of one name are one bar. */
  nodes: readonly number[];
  value: number;
  depth: number;
  /** 0 … 1 of the width. */
  x: number;
  width: number;
}

/** Which nodes stand for equal layers, their children, and what those of several layers are called in common. */
export interface Alike {
  layers: (node: number) => boolean;
  name: (node: number) => string;
}
const NONE: Alike = { layers: () => false, name: String };

/** Bars of `root` and what is inside, as far as they are at least `least` of the width. */
export function icicleBars(
  tree: Tree,
  root: number,
  value: (node: number) => number,
  depth: number,
  least: number,
  alike: Alike = NONE,
): Bar[] {
  const bars: Bar[] = [];
  const whole = value(root);
  if (!(whole > 0)) return bars;
  const sum = (nodes: readonly number[]) => nodes.reduce((total, node) => total + Math.max(0, value(node)), 0);
  const add = (nodes: readonly number[], x: number, width: number, level: number) => {
    if (width < least) return;
    const size = sum(nodes);
    bars.push({ node: nodes[0], nodes, value: size, depth: level, x, width });
    if (level + 1 >= depth) return;
    const groups = insideOf(tree, nodes, value, alike);
    // Seconds of the slowest device do not add up: what is inside never reaches beyond what it stands in.
    const all = Math.max(
      size,
      groups.reduce((total, inside) => total + sum(inside), 0),
    );
    let at = x;
    for (const inside of groups) {
      const share = (width * sum(inside)) / all;
      add(inside, at, share, level + 1);
      at += share;
    }
  };
  add([root], 0, 1, 0);
  return bars;
}

/** The bars below some nodes, largest first: one for each child, or one for each name in several layers. */
function insideOf(tree: Tree, nodes: readonly number[], value: (node: number) => number, alike: Alike): number[][] {
  const layers = nodes.flatMap((node) => (alike.layers(node) ? tree.children[node] : [node]));
  const groups = new Map<string, number[]>();
  for (const child of layers.flatMap((node) => tree.children[node])) {
    const key = layers.length > 1 ? alike.name(child) : String(child);
    groups.set(key, [...(groups.get(key) ?? []), child]);
  }
  const sorted = [...groups.values()].map((group) => group.sort((a, b) => value(b) - value(a)));
  const size = (group: number[]) => group.reduce((total, node) => total + value(node), 0);
  return sorted.sort((a, b) => size(b) - size(a));
}

/** The nodes that a chain of single children leads through, so that a picture does not repeat one figure ten times. */
export function skipChain(tree: Tree, root: number, value: (node: number) => number): number {
  let at = root;
  for (;;) {
    const heavy = tree.children[at].filter((child) => value(child) > 0);
    if (heavy.length !== 1 || value(heavy[0]) < 0.999 * value(at)) return at;
    at = heavy[0];
  }
}

export { type Tree, treeFrom };
