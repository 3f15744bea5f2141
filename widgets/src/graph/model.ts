// The graph of a module as nested groups: which boxes show, and what flows between them. No drawing here.

export const ROOT = -1;
const LEFT_OUT = -2;

/** Instructions and the groups that they are in; nodes are groups first, then instructions. */
export interface Nesting {
  /** Parent of every node: a group, -1 for none, -2 for nodes that are not shown. */
  parent: ArrayLike<number>;
  /** The instruction that a group shows the inside of (a fusion), or -1. */
  fusions: readonly number[];
}

export interface Flow {
  /** Pairs of instructions: the first is an operand of the second. */
  edges: ArrayLike<number>;
  /** Bytes of the value that each instruction makes. */
  sizes: ArrayLike<number>;
  /** What boxes are ranked by. */
  weights: ArrayLike<number>;
  /** Parameters, constants, tuples: edges lead through them unless they are shown. */
  trivial(instruction: number): boolean;
}

/** A group, an instruction, or what a group with many members has left over (`rest`). */
export interface Box {
  id: number;
  parent: number;
  open: boolean;
  /** How many members a box of leftovers represents. */
  rest: number;
}
export interface Arc {
  from: number;
  to: number;
  bytes: number;
  values: number;
}
export interface Frontier {
  boxes: Box[];
  arcs: Arc[];
}

/** Groups that hold nothing but one other group become one frame with it: `chains[group]` are those before it. */
export function mergeChains(nesting: Nesting, trivial: Flow["trivial"]): { nesting: Nesting; chains: number[][] } {
  const { fusions } = nesting;
  const parent = Int32Array.from(nesting.parent);
  const solid: Set<number>[] = fusions.map(() => new Set());
  const add = (node: number) => {
    for (let at = node; parent[at] >= 0 && !solid[parent[at]].has(at); at = parent[at]) solid[parent[at]].add(at);
  };
  for (let node = fusions.length; node < parent.length; node++) if (!trivial(node - fusions.length)) add(node);
  fusions.forEach((fusion, group) => {
    if (fusion >= 0) add(group);
  });
  const chains: number[][] = fusions.map(() => []);
  const head = new Map<number, number>(); // a merged group -> the one that it is shown as
  for (let group = 0; group < fusions.length; group++) {
    const [only] = solid[group];
    if (solid[group].size !== 1 || only >= fusions.length || fusions[only] >= 0) continue;
    chains[only] = [...chains[group], group];
    parent[only] = parent[group];
    head.set(group, only);
  }
  const last = (group: number): number => (head.has(group) ? last(head.get(group) as number) : group);
  for (let node = 0; node < parent.length; node++) if (parent[node] >= 0) parent[node] = last(parent[node]);
  for (const group of head.keys()) parent[group] = LEFT_OUT;
  return { nesting: { parent, fusions }, chains };
}

export const isRest = (id: number): boolean => id < LEFT_OUT;
const restOf = (group: number): number => -10 - group; // group -1 (none) has -9
export const groupOfRest = (id: number): number => -10 - id;

export class Graph {
  readonly groups: number;
  readonly count: number;
  private readonly members = new Map<number, number[]>();
  private readonly weight: Float64Array;
  private readonly inside: Int32Array;
  private readonly solid: Int32Array; // instructions in it that are not trivial
  private readonly drawn: Int32Array;
  private whole = 0;

  constructor(
    private readonly nesting: Nesting,
    private readonly flow: Flow,
  ) {
    this.groups = nesting.fusions.length;
    this.count = nesting.parent.length;
    this.weight = new Float64Array(this.count);
    this.inside = new Int32Array(this.count);
    this.solid = new Int32Array(this.count);
    this.drawn = new Int32Array(this.count - this.groups);
    for (let i = 0; i < this.drawn.length; i++) this.drawn[i] = this.groups + i;
    nesting.fusions.forEach((fusion, group) => {
      if (fusion >= 0) this.drawn[fusion] = group;
    });
    this.sumUp();
    this.collect();
  }

  /** Every node adds its weight to all groups around it. */
  private sumUp(): void {
    for (let i = 0; i < this.drawn.length; i++) {
      const home = this.drawn[i];
      if (this.nesting.parent[home] === LEFT_OUT) continue;
      this.whole += this.flow.weights[i] || 0;
      const solid = this.flow.trivial(i) ? 0 : 1;
      for (let at = home; at >= 0; at = this.nesting.parent[at]) {
        this.weight[at] += this.flow.weights[i] || 0;
        this.inside[at] += 1;
        this.solid[at] += solid;
      }
    }
  }

  private collect(): void {
    for (let node = 0; node < this.count; node++) {
      const parent = this.nesting.parent[node];
      if (parent === LEFT_OUT || (node < this.groups && this.inside[node] === 0)) continue;
      const list = this.members.get(parent);
      if (list) list.push(node);
      else this.members.set(parent, [node]);
    }
    for (const list of this.members.values()) list.sort((a, b) => this.weight[b] - this.weight[a] || a - b);
  }

  isGroup(node: number): boolean {
    return node >= 0 && node < this.groups;
  }
  /** The instruction of a node; -1 for groups that are no fusion. */
  instructionOf(node: number): number {
    return node < 0 ? -1 : this.isGroup(node) ? this.nesting.fusions[node] : node - this.groups;
  }
  nodeOf(instruction: number): number {
    return this.drawn[instruction];
  }
  parentOf(node: number): number {
    return this.nesting.parent[node];
  }
  instructionsIn(node: number): number {
    return this.inside[node];
  }
  /** Of the weight of everything, 0 … 1. */
  shareOf(node: number): number {
    return this.whole > 0 ? this.weight[node] / this.whole : 0;
  }

  /** What a group shows: the heaviest first, without what is trivial unless `all`. */
  membersOf(group: number, all: boolean): number[] {
    const list = this.members.get(group) ?? [];
    return all ? list : list.filter((node) => this.solid[node] > 0);
  }

  /** The node and the groups around it, from the outside in. */
  pathTo(node: number): number[] {
    const path: number[] = [];
    for (let at = node; at >= 0; at = this.nesting.parent[at]) path.unshift(at);
    return path;
  }

  /** Opens a group, and further while it holds nothing but one other group. */
  openChain(group: number, open: Set<number>, all: boolean): void {
    let at = group;
    for (;;) {
      open.add(at);
      const members = this.membersOf(at, all);
      if (members.length !== 1 || !this.isGroup(members[0])) return;
      at = members[0];
    }
  }

  /** The groups to open at first: the heaviest, until about `most` boxes show. */
  firstLook(most: number): Set<number> {
    const open = new Set<number>();
    const value = (node: number) => this.weight[node] / 2 ** this.pathTo(node).length; // rather wide than deep
    let shown = Math.min(this.membersOf(ROOT, false).length, most);
    const waiting = this.membersOf(ROOT, false).filter((node) => this.isGroup(node));
    while (waiting.length) {
      waiting.sort((a, b) => value(a) - value(b));
      const next = waiting.pop() as number;
      const members = this.membersOf(next, false);
      if (this.nesting.fusions[next] >= 0 || shown + members.length - 1 > most) continue;
      open.add(next);
      shown += members.length - 1;
      waiting.push(...members.filter((node) => this.isGroup(node)));
    }
    return open;
  }

  /** What shows when `open` groups are open; of a group with many members one page of `page` and a box for the rest. */
  frontier(
    open: ReadonlySet<number>,
    options: { all: boolean; page: number; pages?: ReadonlyMap<number, number> },
  ): Frontier {
    const boxes: Box[] = [];
    const represents = new Int32Array(this.count).fill(LEFT_OUT);
    const claim = (node: number, box: number) => {
      represents[node] = box;
      for (const member of this.isGroup(node) ? this.membersOf(node, true) : []) claim(member, box);
    };
    const show = (group: number) => {
      const members = this.membersOf(group, options.all);
      const { shown, rest } = pageOf(members, options.page, options.pages?.get(group) ?? 0);
      for (const node of shown) {
        const isOpen = open.has(node) && this.isGroup(node) && this.membersOf(node, options.all).length > 0;
        boxes.push({ id: node, parent: group, open: isOpen, rest: 0 });
        represents[node] = node;
        if (isOpen) show(node);
        else claim(node, node);
      }
      if (!rest.length) return;
      boxes.push({ id: restOf(group), parent: group, open: false, rest: rest.length });
      for (const node of rest) claim(node, restOf(group));
    };
    show(ROOT);
    return { boxes, arcs: this.arcs(represents, options.all) };
  }

  /** The values that each instruction reads in the end, through everything that only passes them on. */
  private arcs(represents: Int32Array, all: boolean): Arc[] {
    const { edges, sizes, trivial } = this.flow;
    const through = new Map<number, Set<number>>();
    const sources = (i: number): Iterable<number> => (all || !trivial(i) ? [i] : (through.get(i) ?? []));
    const found = new Map<string, Arc>();
    for (let e = 0; e < edges.length; e += 2) {
      const [operand, user] = [edges[e], edges[e + 1]];
      if (!all && trivial(user)) {
        const known = through.get(user) ?? new Set();
        through.set(user, known);
        for (const source of sources(operand)) if (known.size < MOST_SOURCES) known.add(source);
        continue;
      }
      const to = represents[this.drawn[user]];
      for (const source of sources(operand)) {
        const from = represents[this.drawn[source]];
        if (from === LEFT_OUT || to === LEFT_OUT || from === to) continue;
        const key = `${from}>${to}`;
        const arc = found.get(key) ?? { from, to, bytes: 0, values: 0 };
        arc.bytes += sizes[source] || 0;
        arc.values += 1;
        found.set(key, arc);
      }
    }
    return [...found.values()];
  }
}

const MOST_SOURCES = 512; // of one tuple

/** One page of a list and everything that is not on it. */
export function pageOf(list: readonly number[], size: number, page: number): { shown: number[]; rest: number[] } {
  if (list.length <= size) return { shown: [...list], rest: [] };
  const pages = Math.ceil(list.length / size);
  const start = (page % pages) * size;
  const shown = list.slice(start, start + size);
  return { shown, rest: list.filter((_, i) => i < start || i >= start + size) };
}

/** Closes the groups that were opened longest ago until at most `most` boxes show; `kept` and what is around it stay. */
export function closeOldest(
  order: readonly number[],
  kept: ReadonlySet<number>,
  count: (open: ReadonlySet<number>) => number,
  most: number,
): Set<number> {
  const open = new Set(order);
  for (const group of order) {
    if (count(open) <= most) break;
    if (!kept.has(group)) open.delete(group);
  }
  return open;
}

/** The boxes within some steps of one along the arcs, in both directions. */
export function around(arcs: readonly Arc[], box: number, steps: number): Set<number> {
  const near = new Set([box]);
  for (let step = 0; step < steps; step++) {
    const before = new Set(near);
    for (const { from, to } of arcs) {
      if (before.has(from)) near.add(to);
      if (before.has(to)) near.add(from);
    }
  }
  return near;
}
