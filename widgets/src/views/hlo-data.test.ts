import { expect, it } from "vitest";
import { definedName, isTrivial, Module } from "./hlo-data";

const joint = {
  name: "all-reduce.1",
  axis_names: ["model"],
  axes: "model",
  payload: 8,
  times: 1,
  sent: 12,
  stages: [],
  rows: [],
};
const state: Record<string, unknown> = {
  count: 3,
  names: "dot.1\nall-reduce.1\nadd.2",
  shapes: "f32[8]\nf32[8]\nf32[8]",
  operands: "\n\n",
  op_names: ["jit(f)/dot", "jit(f)/psum", ""],
  opcodes: ["dot", "all-reduce", "add"],
  stages: [""],
  computations: ["main"],
  collectives: [joint],
  sources: [["f.py", 3, "f.py:3"]],
};
const arrays: Record<string, number[]> = {
  "hlo.opcode": [0, 1, 2],
  "hlo.source": [0, 0, -1],
  "hlo.flops": [100, 0, 8],
  "hlo.elementwise": [3, 8, 8],
  "hlo.accessed": [64, 64, 64],
  "hlo.executions": [4, Number.NaN, 1],
  "hlo.collective": [-1, 0, -1],
};
const module = new Module({
  state: <T>(name: string) => state[name] as T,
  array: (name) => Float32Array.from(arrays[name] ?? [0, 0, 0]),
});

it("a line costs what its instructions cost, as often as they run", () => {
  expect(module.costOfLines().get("f.py:3")).toEqual({
    instructions: 2,
    flops: 400,
    elementwise: 20, // 4 × 3 and once 8
    traffic: 320,
    sent: 12,
  });
});

it("instructions are found by name, line and words", () => {
  expect(module.find("add.2")).toBe(2);
  expect(module.find("other")).toBe(-1);
  expect(module.ofLine("f.py:3")).toEqual([0, 1]);
  expect(module.matches(1, ["psum", "f.py"])).toBe(true);
  expect(module.matches(2, ["psum"])).toBe(false);
});

it("a line of HLO text defines a name", () => {
  expect(definedName("  ROOT %add.2 = f32[8] add(%a, %b)")).toBe("add.2");
  expect(definedName("  all-reduce.1 = f32[8]{0} all-reduce(dot.1)")).toBe("all-reduce.1");
  expect(definedName("}")).toBeNull();
});

it("what only passes a value on is trivial", () => {
  expect(isTrivial("get-tuple-element")).toBe(true);
  expect(isTrivial("fusion")).toBe(false);
});
