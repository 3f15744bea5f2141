// A tree as arrays, and the rows of it that a table shows: sorted among siblings, filtered with their ancestors.

export interface Tree {
  /** Parent of every node, -1 for roots. */
  readonly parent: ArrayLike<number>;
  /** Every node after its parent. */
  readonly order: readonly number[];
  readonly roots: readonly number[];
  readonly children: readonly (readonly number[])[];
}

export interface Row {
  node: number;
  depth: number;
  expandable: boolean;
  expanded: boolean;
  /** Place among its siblings, from 1, and how many there are. */
  place: number;
  siblings: number;
}

export type Order = (a: number, b: number) => number;

export function treeFrom(parent: ArrayLike<number>): Tree {
  const children: number[][] = Array.from({ length: parent.length }, () => []);
  const roots: number[] = [];
  for (let i = 0; i < parent.length; i++) (parent[i] < 0 ? roots : children[parent[i]]).push(i);
  const order = [...roots];
  for (let i = 0; i < order.length; i++) for (const child of children[order[i]]) order.push(child);
  return { parent, roots, children, order };
}

/** A node and everything it stands in, from the outside in. */
export function pathTo(tree: Tree, node: number): number[] {
  const path: number[] = [];
  for (let at = node; at >= 0; at = tree.parent[at]) path.unshift(at);
  return path;
}

/** Which nodes a filter keeps: those that pass, what they stand in, and what is inside of them. */
export function keepWithContext(tree: Tree, passes: (node: number) => boolean): Uint8Array {
  const kept = new Uint8Array(tree.parent.length);
  const { parent, order } = tree;
  for (const i of order) if (passes(i) || (parent[i] >= 0 && kept[parent[i]] === 1)) kept[i] = 1;
  for (let at = order.length - 1; at >= 0; at--) {
    const above = parent[order[at]];
    if (kept[order[at]] && above >= 0 && !kept[above]) kept[above] = 2;
  }
  return kept;
}

/** Long lists of siblings in their order, so that a filter does not sort them again with every key. */
export type Sorted = Map<readonly number[], readonly number[]>;
const LONG = 2000;

function inOrder(nodes: readonly number[], order: Order | undefined, sorted: Sorted | undefined): readonly number[] {
  if (!order) return nodes;
  if (!sorted || nodes.length < LONG) return [...nodes].sort(order);
  const known = sorted.get(nodes) ?? [...nodes].sort(order);
  sorted.set(nodes, known);
  return known;
}

/** The rows that are on show; a node above a match is open, whatever `open` says, unless `openMatches` is false. */
export function visibleRows(
  tree: Tree,
  open: ReadonlySet<number>,
  order?: Order,
  kept?: Uint8Array,
  openMatches = true,
  sorted?: Sorted,
): Row[] {
  const rows: Row[] = [];
  const add = (nodes: readonly number[], depth: number) => {
    const long = nodes.length >= LONG;
    const some = kept && !long ? nodes.filter((node) => kept[node]) : nodes;
    const inTurn = inOrder(some, order, sorted);
    const shown = kept && long ? inTurn.filter((node) => kept[node]) : inTurn;
    shown.forEach((node, i) => {
      const expandable = tree.children[node].length > 0;
      const expanded = expandable && (open.has(node) || (openMatches && kept?.[node] === 2));
      rows.push({ node, depth, expandable, expanded, place: i + 1, siblings: shown.length });
      if (expanded) add(tree.children[node], depth + 1);
    });
  };
  add(tree.roots, 0);
  return rows;
}

/** Opens the largest nodes first until about `most` rows show: what a first look should hold. */
export function openLargest(
  tree: Tree,
  value: (node: number) => number,
  most: number,
  folded: (node: number) => boolean = () => false,
): Set<number> {
  const open = new Set<number>();
  let shown = tree.roots.length;
  const waiting = [...tree.roots];
  while (waiting.length) {
    waiting.sort((a, b) => value(a) - value(b) || b - a);
    const next = waiting.pop();
    if (next === undefined || shown + tree.children[next].length > most) break;
    if (!tree.children[next].length || folded(next)) continue;
    open.add(next);
    shown += tree.children[next].length;
    waiting.push(...tree.children[next]);
  }
  return open;
}

/** Siblings by a number, unknown ones last, equal ones in their own order. */
export function byNumber(value: (node: number) => number | null, descending: boolean): Order {
  const sign = descending ? -1 : 1;
  return (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || Number.isNaN(x)) return y === null || Number.isNaN(y) ? a - b : 1;
    if (y === null || Number.isNaN(y)) return -1;
    return sign * (x - y) || a - b;
  };
}

export function byText(value: (node: number) => string, descending: boolean): Order {
  const sign = descending ? -1 : 1;
  return (a, b) => sign * value(a).localeCompare(value(b), undefined, { numeric: true }) || a - b;
}
