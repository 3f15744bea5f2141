import { expect, it } from "vitest";
import { Module } from "../views/hlo-data";
import { Labels } from "./labels";
import { type Box, Graph, ROOT } from "./model";

// Group 0 holds the instructions 0 (a product, run twice, with an addition in it) and 1 (elementwise alone); 2 is a tuple.
const graph = new Graph(
  { parent: [ROOT, 0, 0, ROOT], fusions: [-1] },
  { edges: [], sizes: [4, 4, 0], weights: [1, 1, 0], trivial: () => false },
);
const state: Record<string, unknown> = {
  count: 3,
  names: "dot.1\nadd.2\ntuple.3",
  shapes: "f32[8]{0}\nf32[8]{0}\n(f32[8])",
  operands: "\n\n",
  op_names: ["", "", ""],
  opcodes: ["dot", "add", "tuple"],
  stages: [""],
  computations: ["main"],
  collectives: [],
  sources: [],
};
const arrays: Record<string, number[]> = {
  "hlo.opcode": [0, 1, 2],
  "hlo.source": [-1, -1, -1],
  "hlo.flops": [1000, 0, 0],
  "hlo.elementwise": [10, 8, 0],
  "hlo.executions": [2, 1, 1],
  "hlo.collective": [-1, -1, -1],
};
const module = new Module({
  state: <T>(name: string) => state[name] as T,
  array: (name) => Float32Array.from(arrays[name] ?? [0, 0, 0]),
});
const labels = new Labels(graph, module, [{ title: "layer", kind: "" }], ["dot", "add", "tuple"]);
const facts = (id: number) => labels.words({ id, rest: 0 } as Box).facts;

it("boxes state elementwise work next to matrix products", () => {
  expect([1, 2, 3].map(facts)).toEqual([
    "f32[8] · 2 kFLOP and 20 FLOP elementwise",
    "f32[8] · 8 FLOP elementwise",
    "tuple",
  ]);
  expect(facts(0)).toBe("2 instructions · 2 kFLOP and 28 FLOP elementwise");
});
