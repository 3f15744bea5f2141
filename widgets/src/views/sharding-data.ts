// Arithmetic of shardings: pytrees of arrays, sizes under another spec, what could be tried.
import type { ShardingLeaf } from "../lib/states";

export type Spec = readonly (readonly string[])[];
export type Sizes = Readonly<Record<string, number>>;

const product = (values: readonly number[]) => values.reduce((a, b) => a * b, 1);
export const sameSpec = (a: Spec, b: Spec): boolean => JSON.stringify(a) === JSON.stringify(b);

/** The parts of a leaf's path, each with the path so far: `params['q'].w` is params, q, w. */
export function pathParts(path: string): [part: string, soFar: string][] {
  const parts = [...path.matchAll(/\[(?:'[^']*'|"[^"]*"|[^\]]*)\]|[^.[\]]+/g)];
  if (!parts.length) return [[path, path]];
  return parts.map(({ 0: part, index }) => [
    part.replace(/^\[['"]?|['"]?\]$/g, ""),
    path.slice(0, index + part.length),
  ]);
}

export interface PathTree {
  names: string[];
  /** The whole path of a node: what the selection calls it. */
  paths: string[];
  parent: number[];
  /** Index of the leaf that a node is, or -1 for what holds others. */
  leaf: number[];
}

/** Leaves as a tree; parents come before their children. */
export function pathTree(leaves: readonly string[]): PathTree {
  const tree: PathTree = { names: [], paths: [], parent: [], leaf: [] };
  const inner = new Map<string, number>();
  leaves.forEach((path, index) => {
    let parent = -1;
    const parts = pathParts(path);
    parts.forEach(([name, soFar], depth) => {
      const last = depth === parts.length - 1;
      const present = last ? undefined : inner.get(soFar);
      const node = present ?? tree.names.length;
      if (present === undefined) {
        tree.names.push(name);
        tree.paths.push(last ? path : soFar);
        tree.parent.push(parent);
        tree.leaf.push(last ? index : -1);
        if (!last) inner.set(soFar, node);
      }
      parent = node;
    });
  });
  return tree;
}

/** Pieces per dimension. */
export const parts = (spec: Spec, sizes: Sizes): number[] =>
  spec.map((axes) => product(axes.map((axis) => sizes[axis] ?? 1)));

export function shardShape(leaf: Pick<ShardingLeaf, "shape">, spec: Spec, sizes: Sizes): number[] {
  const cut = parts(spec, sizes);
  return leaf.shape.map((size, d) => Math.ceil(size / (cut[d] ?? 1)));
}

export const bytesPerDevice = (leaf: Pick<ShardingLeaf, "shape" | "itemsize">, spec: Spec, sizes: Sizes): number =>
  product(shardShape(leaf, spec, sizes)) * leaf.itemsize;

/** How many devices hold the same shard. */
export const copies = (spec: Spec, sizes: Sizes): number =>
  Math.max(1, product(Object.values(sizes)) / product(parts(spec, sizes)));

/** What keeps JAX from taking such a spec, in words. */
export function faults(leaf: Pick<ShardingLeaf, "shape">, spec: Spec, sizes: Sizes): string[] {
  const used = spec.flat();
  const twice = used.find((axis, i) => used.indexOf(axis) !== i);
  if (twice) return [`Mesh axis ${twice} is used twice; one array can use each axis only once.`];
  const cut = parts(spec, sizes);
  return leaf.shape.flatMap((size, d) => {
    if (size % cut[d] === 0) return [];
    const padded = Math.ceil(size / cut[d]) * cut[d];
    return [
      `${cut[d]} does not divide dimension ${d} (${size}): JAX rejects this spec for an input; pad to ${padded}.`,
    ];
  });
}

export interface Candidate {
  spec: Spec;
  axis: string;
  dimension: number;
  saved: number;
}

/** Every way to cut one more dimension over one more axis that JAX would take, those that save most first. */
export function candidates(leaf: ShardingLeaf, spec: Spec, sizes: Sizes): Candidate[] {
  const used = new Set(spec.flat());
  const now = bytesPerDevice(leaf, spec, sizes);
  const found: Candidate[] = [];
  for (const [axis, size] of Object.entries(sizes)) {
    if (used.has(axis) || size < 2) continue;
    leaf.shape.forEach((_, dimension) => {
      const next = spec.map((axes, d) => (d === dimension ? [...axes, axis] : axes));
      if (faults(leaf, next, sizes).length) return;
      found.push({ spec: next, axis, dimension, saved: now - bytesPerDevice(leaf, next, sizes) });
    });
  }
  return found.sort((a, b) => b.saved - a.saved || b.dimension - a.dimension);
}

export interface GroupOffer {
  axis: string;
  /** The arrays that change, with their new specs. */
  changed: { leaf: ShardingLeaf; spec: Spec }[];
  saved: number;
}

/** One axis for all matrices of a part of the tree, each cut along its longest dimension that the axis divides. */
export function groupOffers(
  leaves: readonly ShardingLeaf[],
  specOf: (leaf: ShardingLeaf) => Spec,
  sizes: Sizes,
): GroupOffer[] {
  const found = Object.keys(sizes).map((axis): GroupOffer => {
    const changed = leaves.flatMap((leaf) => {
      const fitting = leaf.shape.length > 1 ? candidates(leaf, specOf(leaf), sizes) : [];
      const [best] = fitting
        .filter((each) => each.axis === axis && each.saved > 0)
        .sort((a, b) => leaf.shape[b.dimension] - leaf.shape[a.dimension]);
      return best ? [{ leaf, spec: best.spec, saved: best.saved }] : [];
    });
    return { axis, changed, saved: changed.reduce((sum, { saved }) => sum + saved, 0) };
  });
  return found.filter(({ changed }) => changed.length).sort((a, b) => b.saved - a.saved);
}

/** A name as Python writes it, between single quotes. */
const text = (axis: string) => `'${JSON.stringify(axis).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`;

/** A name of a record as part of Python code: what could end the line or call something is replaced. */
const asName = (path: string) => path.replace(/[^\p{L}\p{N}_.[\]'" -]/gu, "_");

/** A spec as a line of Python. */
export function written(spec: Spec): string {
  const part = (axes: readonly string[]) =>
    axes.length === 0 ? "None" : axes.length === 1 ? text(axes[0]) : `(${axes.map(text).join(", ")})`;
  let last = spec.length;
  while (last > 0 && spec[last - 1].length === 0) last -= 1;
  return `P(${spec.slice(0, last).map(part).join(", ")})`;
}

/** Every ordered choice of up to three mesh axes, so that one dimension can be cut by several. */
export function axisChoices(axes: readonly string[], most = 60): string[][] {
  const found: string[][] = [[]];
  const grow = (chosen: string[]) => {
    if (chosen.length >= 3) return;
    for (const axis of axes) {
      if (chosen.includes(axis)) continue;
      found.push([...chosen, axis]);
      grow([...chosen, axis]);
    }
  };
  grow([]);
  return found.sort((a, b) => a.length - b.length).slice(0, most);
}

/** A cell that places the arrays as they were tried; arrays and mesh are named as the program names them. */
export function placementCode(changed: readonly { path: string; spec: Spec }[], sizes: Sizes): string {
  const mesh = Object.entries(sizes).map(([axis, size]) => `${asName(axis)}=${size}`);
  const lines = changed.map(({ path, spec }) => {
    const name = asName(path);
    return `${name} = jax.device_put(${name}, NamedSharding(mesh, ${written(spec)}))`;
  });
  return [
    "import jax",
    "from jax.sharding import NamedSharding, PartitionSpec as P",
    "",
    `# as tried in the explorer; replace the names of the arrays and of the mesh with your own (${mesh.join(", ")})`,
    ...lines,
  ].join("\n");
}
