// What the launch view knows of the nodes of a program: columns, filter, order, facts. Nothing here draws.

import { formatBytes, formatCount, formatSeconds } from "../lib/format";
import { range } from "../lib/scale";
import type { NodeState, ProgramNode } from "../lib/states";

type Nodes = Readonly<Record<string, ProgramNode>>;
type States = ReadonlyMap<string, NodeState>;
type Amount = number | null | undefined;

const known = (value: Amount): value is number => value !== null && value !== undefined && Number.isFinite(value);
const orDash = (show: (value: number) => string) => (value: Amount) => (known(value) ? show(value) : "–");
export const formatRate = (value: number): string => (value >= 10 ? formatCount(Math.round(value)) : value.toFixed(1));
const ago = (value: number) => (value < 1 ? "now" : formatSeconds(Math.round(value * 10) / 10));
export const formatCores = (value: number): string => value.toFixed(2);

export interface NumberColumn {
  name: string;
  value: (node: NodeState) => Amount;
  show: (value: Amount) => string;
}
/** The columns with numbers, which sort the table. */
export const NUMBERS: readonly NumberColumn[] = [
  { name: "last heartbeat", value: (node) => node.beat, show: orDash(ago) },
  { name: "calls/s", value: (node) => node.rate, show: orDash(formatRate) },
  { name: "queue", value: (node) => node.queue, show: orDash(formatCount) },
  { name: "CPU", value: (node) => node.cpu, show: orDash(formatCores) },
  { name: "memory", value: (node) => node.memory, show: orDash(formatBytes) },
  { name: "restarts", value: (node) => node.restarts, show: orDash(formatCount) },
];

/** All nodes (""), those that failed ("failed"), or those of one group ("=workers"). */
export type Filter = string;
export interface Sort {
  /** An index into `NUMBERS`. */
  column: number;
  descending: boolean;
}

/** Descending, then ascending, then the program's own order. */
export function nextSort(sort: Sort | null, column: number): Sort | null {
  if (sort?.column !== column) return { column, descending: true };
  return sort.descending ? { column, descending: false } : null;
}

/** The labels of the nodes that pass the filter, in order; nodes without a value are last. */
export function listed(nodes: Nodes, states: States, filter: Filter, sort: Sort | null): string[] {
  const passes = (label: string) => {
    if (filter === "") return true;
    return filter === "failed" ? states.get(label)?.failed === true : `=${nodes[label].group}` === filter;
  };
  const labels = Object.keys(nodes).filter(passes);
  if (!sort) return labels;
  const { value } = NUMBERS[sort.column];
  const sign = sort.descending ? -1 : 1;
  const of = (label: string) => {
    const state = states.get(label);
    const amount = state && value(state);
    return known(amount) ? sign * amount : Number.POSITIVE_INFINITY;
  };
  return labels.sort((a, b) => (of(a) === of(b) ? 0 : of(a) - of(b)));
}

export type Fact = readonly [string, string];
type MaybeFact = readonly [string, string | null | undefined | false];
const MOST_NAMES = 6;

function names(all: readonly string[]): string {
  if (all.length <= MOST_NAMES) return all.join(", ");
  return `${all.slice(0, MOST_NAMES).join(", ")} and ${all.length - MOST_NAMES} more`;
}

function running(node: ProgramNode, now: NodeState, sign: string): MaybeFact[] {
  const answers = node.methods.length > 0;
  const rate = known(now.rate) ? `, ${formatRate(now.rate)} per second` : "";
  return [
    ["state", `${sign} ${now.state}`],
    ["runs in", now.where],
    ["last heartbeat", known(now.beat) && `${formatSeconds(Math.max(now.beat, 0.001))} ago`],
    ["running for", known(now.uptime) && formatSeconds(Math.round(now.uptime))],
    ["calls answered", answers && `${formatCount(now.calls)}${rate}`],
    ["calls now", answers && `${formatCount(now.active)} running, ${formatCount(now.queue)} waiting`],
    ["calls that raised", now.errors > 0 && formatCount(now.errors)],
    ["processor", known(now.cpu) && `${formatCores(now.cpu)} cores`],
    ["memory", known(now.memory) && formatBytes(now.memory)],
    ["restarts", (now.restarts > 0 || node.restarts > 0) && `${now.restarts} of at most ${node.restarts}`],
    ["exit code", known(now.code) && String(now.code)],
  ];
}

/** What is known about one node: what it does now, if it is launched, then what the program says of it. */
export function factsOf(node: ProgramNode, now: NodeState | undefined, sign: string): Fact[] {
  const declared: MaybeFact[] = [
    ["methods", node.methods.map((name) => `.${name}()`).join(", ")],
    ["calls", names(node.calls)],
    ["called by", names(node.callers)],
    ["calls at a time", node.concurrency > 1 && `at most ${node.concurrency}`],
    ["needs", node.resources.join(", ")],
    ["shares its process with", names(node.shares)],
    ["restart limit", !now && node.restarts > 0 && String(node.restarts)],
  ];
  const all: MaybeFact[] = now ? [...running(node, now, sign), ...declared] : [["state", "not launched"], ...declared];
  return all.filter((fact): fact is Fact => Boolean(fact[1]));
}

export interface Spark {
  /** SVG paths in a box of 200 × 38. */
  line: string;
  area: string;
  now: number;
  low: number;
  high: number;
}

/** A small curve from 0 to the largest value; null where there is nothing to draw. */
export function sparkOf(values: ArrayLike<number>): Spark | null {
  const finite = Array.from(values).filter(Number.isFinite);
  const [low, high] = range(finite);
  if (finite.length < 2 || high <= 0) return null;
  const step = 200 / (values.length - 1);
  const points: [string, string][] = [];
  for (let i = 0; i < values.length; i++)
    if (Number.isFinite(values[i])) points.push([(i * step).toFixed(1), (36 - (32 * values[i]) / high).toFixed(1)]);
  const line = `M${points.map((point) => point.join(" ")).join("L")}`;
  const [first, last] = [points[0], points[points.length - 1]];
  return { line, area: `${line}L${last[0]} 38L${first[0]} 38Z`, now: finite[finite.length - 1], low, high };
}
