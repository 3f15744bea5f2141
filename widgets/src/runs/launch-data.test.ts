import { describe, expect, it } from "vitest";
import type { NodeState, ProgramNode } from "../lib/states";
import { factsOf, listed, NUMBERS, nextSort, sparkOf } from "./launch-data";

const node = (group: string, more: Partial<ProgramNode> = {}): ProgramNode => ({
  group,
  kind: "service",
  hue: "server",
  target: "Store",
  methods: [],
  calls: [],
  callers: [],
  concurrency: 1,
  restarts: 0,
  resources: [],
  shares: [],
  ...more,
});
const state = (label: string, more: Partial<NodeState> = {}): NodeState => ({
  label,
  state: "running",
  where: "process 7",
  beat: 0.2,
  uptime: 3,
  calls: 12,
  rate: null,
  errors: 0,
  active: 0,
  queue: null,
  cpu: null,
  memory: null,
  restarts: 0,
  code: null,
  failed: false,
  last: [],
  ...more,
});
const NODES = { store: node("store"), a: node("workers"), b: node("workers") };
const STATES = new Map([
  ["store", state("store", { cpu: 0.5 })],
  ["a", state("a", { failed: true })],
  ["b", state("b", { cpu: 2 })],
]);
const CPU = NUMBERS.findIndex(({ name }) => name === "CPU");

describe("the table of nodes", () => {
  it("keeps one group, or those that failed", () => {
    expect(listed(NODES, STATES, "=workers", null)).toEqual(["a", "b"]);
    expect(listed(NODES, STATES, "failed", null)).toEqual(["a"]);
  });

  it("sorts by a number, nodes without one last", () => {
    expect(listed(NODES, STATES, "", { column: CPU, descending: true })).toEqual(["b", "store", "a"]);
    expect(listed(NODES, STATES, "", { column: CPU, descending: false })).toEqual(["store", "b", "a"]);
  });

  it("turns the order with each click, and back to the program's own", () => {
    const first = nextSort(null, CPU);
    const second = nextSort(first, CPU);
    expect([first?.descending, second?.descending, nextSort(second, CPU)]).toEqual([true, false, null]);
    expect(nextSort(second, 0)).toEqual({ column: 0, descending: true });
  });

  it("shows a dash for what is not known", () => {
    expect(NUMBERS.map(({ value, show }) => show(value(state("a"))))).toEqual(["now", "–", "–", "–", "–", "0"]);
  });
});

describe("the facts of a node", () => {
  it("are the program's own before launch", () => {
    const made = node("store", { methods: ["get", "put"], restarts: 2 });
    expect(factsOf(made, undefined, "")).toEqual([
      ["state", "not launched"],
      ["methods", ".get(), .put()"],
      ["restart limit", "2"],
    ]);
  });

  it("have what it does now, and list six names at most", () => {
    const made = node("store", { methods: ["get"], callers: Array.from("abcdefgh") });
    const facts = new Map(factsOf(made, state("store", { rate: 12.4, queue: 3, active: 1 }), "●"));
    expect(facts.get("calls answered")).toBe("12, 12 per second");
    expect(facts.get("calls now")).toBe("1 running, 3 waiting");
    expect(facts.get("called by")).toBe("a, b, c, d, e, f and 2 more");
    expect(facts.has("exit code")).toBe(false);
  });
});

describe("a small curve", () => {
  it("goes from 0 to the largest value and leaves gaps out", () => {
    const made = sparkOf([0, Number.NaN, 4]);
    expect(made?.line).toBe("M0.0 36.0L200.0 4.0");
    expect(made?.area).toBe("M0.0 36.0L200.0 4.0L200.0 38L0.0 38Z");
    expect([made?.low, made?.high, made?.now]).toEqual([0, 4, 4]);
  });

  it("is left out where nothing was seen", () => {
    expect(sparkOf([1])).toBeNull();
    expect(sparkOf([0, 0, 0])).toBeNull();
  });
});
