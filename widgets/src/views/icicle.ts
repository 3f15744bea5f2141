// A tree as nested bars: a bar is as wide as its figure, what is inside of it hangs below.
import { type Tree, treeFrom } from "../lib/tree";

export interface Bar {
  node: number;
  depth: number;
  /** 0 … 1 of the width. */
  x: number;
  width: number;
}

/** Bars of `root` and what is inside, as far as they are at least `least` of the width. */
export function icicleBars(
  tree: Tree,
  root: number,
  value: (node: number) => number,
  depth: number,
  least: number,
): Bar[] {
  const bars: Bar[] = [];
  const whole = value(root);
  if (!(whole > 0)) return bars;
  const add = (node: number, x: number, level: number) => {
    const width = value(node) / whole;
    if (width < least) return;
    bars.push({ node, depth: level, x, width });
    if (level + 1 >= depth) return;
    let at = x;
    const inside = [...tree.children[node]].sort((a, b) => value(b) - value(a));
    for (const child of inside) {
      add(child, at, level + 1);
      at += Math.max(0, value(child)) / whole;
    }
  };
  add(root, 0, 0);
  return bars;
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
