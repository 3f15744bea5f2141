// Collectives as messages between devices, step by step: the textbook algorithms, with the program's own bytes.

export type Algorithm = "ring" | "tree" | "direct";

export interface Message {
  from: number;
  to: number;
  /** Which part of the array; -1: all of it. */
  chunk: number;
  bytes: number;
  /** Whether the receiver adds it to its own, or keeps it as it is. */
  adds: boolean;
}

export type Steps = readonly (readonly Message[])[];

export const ALGORITHMS: Readonly<Record<string, readonly Algorithm[]>> = {
  "all-reduce": ["ring", "tree"],
  "all-gather": ["ring", "direct"],
  "reduce-scatter": ["ring", "direct"],
  "all-to-all": ["direct"],
  "ragged-all-to-all": ["direct"],
  "collective-permute": ["ring"],
  "collective-broadcast": ["tree"],
};

export const ALGORITHM_WORDS: Readonly<Record<Algorithm, string>> = {
  ring: "ring: to the neighbour",
  tree: "tree: pairs at doubling distances",
  direct: "direct: every device to every device",
};

const range = (count: number): number[] => Array.from({ length: count }, (_, i) => i);
const wrap = (value: number, count: number): number => ((value % count) + count) % count;

/** n − 1 steps: chunk by chunk around the ring, added up on the way. */
function ringReduce(n: number, bytes: number): Message[][] {
  return range(n - 1).map((step) =>
    range(n).map((i) => ({ from: i, to: wrap(i + 1, n), chunk: wrap(i - step, n), bytes, adds: true })),
  );
}

/** n − 1 steps: complete chunks around the ring; device i begins with chunk i + `shift`. */
function ringGather(n: number, bytes: number, shift: number): Message[][] {
  return range(n - 1).map((step) =>
    range(n).map((i) => ({ from: i, to: wrap(i + 1, n), chunk: wrap(i + shift - step, n), bytes, adds: false })),
  );
}

/** Device 0 gets the sum; works for any number of devices. */
function treeReduce(n: number, bytes: number): Message[][] {
  const steps: Message[][] = [];
  for (let far = 1; far < n; far *= 2)
    steps.push(
      range(n)
        .filter((i) => i % (2 * far) === far)
        .map((i) => ({ from: i, to: i - far, chunk: -1, bytes, adds: true })),
    );
  return steps;
}

/** Device 0 gives to all. */
const treeBroadcast = (n: number, bytes: number): Message[][] =>
  treeReduce(n, bytes)
    .reverse()
    .map((step) => step.map(({ from, to }) => ({ from: to, to: from, chunk: -1, bytes, adds: false })));

/** n − 1 steps: in step k everyone sends to the device k further on. */
function direct(n: number, bytes: number, chunk: (from: number, to: number) => number, adds: boolean): Message[][] {
  return range(n - 1).map((step) =>
    range(n).map((from) => {
      const to = wrap(from + step + 1, n);
      return { from, to, chunk: chunk(from, to), bytes, adds };
    }),
  );
}

/** The messages of a collective over `n` devices; `payload` is the operand of one device in bytes. */
export function stepsOf(
  kind: string,
  algorithm: Algorithm,
  n: number,
  payload: number,
  pairs: readonly (readonly [number, number])[] = [],
): Steps {
  if (n < 2) return [];
  if (pairs.length) return [pairs.map(([from, to]) => ({ from, to, chunk: from, bytes: payload, adds: false }))];
  switch (kind) {
    case "all-reduce":
      return algorithm === "tree"
        ? [...treeReduce(n, payload), ...treeBroadcast(n, payload)]
        : [...ringReduce(n, payload / n), ...ringGather(n, payload / n, 1)];
    case "reduce-scatter":
      return algorithm === "ring" ? ringReduce(n, payload / n) : direct(n, payload / n, (_, to) => to, true);
    case "all-gather":
      return algorithm === "ring" ? ringGather(n, payload, 0) : direct(n, payload, (from) => from, false);
    case "collective-permute":
      return [range(n).map((from) => ({ from, to: wrap(from + 1, n), chunk: from, bytes: payload, adds: false }))];
    case "collective-broadcast":
      return treeBroadcast(n, payload);
    default:
      return direct(n, payload / n, (from, to) => from * n + to, false);
  }
}

/** What every device holds: of each chunk, whose contributions are in it. */
export type Holdings = readonly (readonly ReadonlySet<number>[])[];

export function startOf(kind: string, n: number): Set<number>[][] {
  const own = (device: number, chunk: number): number[] => {
    if (kind === "all-gather" || kind === "collective-permute") return chunk === device ? [device] : [];
    if (kind === "collective-broadcast") return device === 0 ? [0] : [];
    return [device]; // a device's own part of every chunk
  };
  if (kind.endsWith("all-to-all"))
    return range(n).map((device) =>
      range(n * n).map((chunk) => new Set(Math.floor(chunk / n) === device ? [device] : [])),
    );
  return range(n).map((device) => range(n).map((chunk) => new Set(own(device, chunk))));
}

/** The holdings after the first `count` steps. */
export function holdingsAfter(kind: string, n: number, steps: Steps, count: number): Holdings {
  const held = startOf(kind, n);
  for (const step of steps.slice(0, count)) {
    const sent = step.map(({ from, chunk }) =>
      (chunk < 0 ? held[from] : [held[from][chunk]]).map((part) => new Set(part)),
    );
    step.forEach(({ to, chunk, adds }, i) => {
      const targets = chunk < 0 ? held[to] : [held[to][chunk]];
      targets.forEach((target, part) => {
        if (!adds) target.clear();
        for (const source of sent[i][part]) target.add(source);
      });
    });
  }
  return held;
}

/** Bytes over every directed link in the first `count` steps, by "from>to". */
export function bytesPerLink(steps: Steps, count: number): Map<string, number> {
  const sums = new Map<string, number>();
  for (const { from, to, bytes } of steps.slice(0, count).flat()) {
    const link = `${from}>${to}`;
    sums.set(link, (sums.get(link) ?? 0) + bytes);
  }
  return sums;
}

/** Bytes that the busiest device sends. */
export function mostSent(steps: Steps): number {
  const sums = new Map<number, number>();
  for (const { from, bytes } of steps.flat()) sums.set(from, (sums.get(from) ?? 0) + bytes);
  return Math.max(0, ...sums.values());
}
