import { expect, it } from "vitest";
import type { ShardingLeaf } from "../lib/states";
import {
  axisChoices,
  bytesPerDevice,
  candidates,
  copies,
  faults,
  groupOffers,
  pathParts,
  pathTree,
  placementCode,
  shardShape,
  written,
} from "./sharding-data";

const sizes = { data: 4, model: 2 };
const leaf: ShardingLeaf = {
  path: "w",
  shape: [64, 10],
  shard_shape: [64, 10],
  blocks: [1, 1],
  spec: [[], []],
  itemsize: 4,
  type: "f32[64,10]",
  spec_text: "P()",
  devices: [],
  rows: [],
  notes: [],
  left_out: 0,
  sentence: "",
};

it("a path is split into its keys, indices and attributes", () => {
  const parts = (path: string) => pathParts(path).map(([part]) => part);
  expect(parts("params['layers'][0]['q']")).toEqual(["params", "layers", "0", "q"]);
  expect(parts("opt_state[0].mu['blocks']")).toEqual(["opt_state", "0", "mu", "blocks"]);
  expect(parts("data.x")).toEqual(["data", "x"]);
  expect(parts("x")).toEqual(["x"]);
});

it("leaves become a tree, and every part of it has a path to be selected by", () => {
  expect(pathTree(["p[0].a['w']", "p[0].a['b']", "x"])).toEqual({
    names: ["p", "0", "a", "w", "b", "x"],
    paths: ["p", "p[0]", "p[0].a", "p[0].a['w']", "p[0].a['b']", "x"],
    parent: [-1, 0, 1, 2, 2, -1],
    leaf: [-1, -1, -1, 0, 1, 2],
  });
});

it("a spec cuts an array into shards, and what is not cut is copied", () => {
  const spec = [["data"], ["model"]];
  expect(shardShape(leaf, spec, sizes)).toEqual([16, 5]);
  expect(bytesPerDevice(leaf, spec, sizes)).toBe(320);
  expect(copies(spec, sizes)).toBe(1);
  expect(copies([["data"], []], sizes)).toBe(2);
});

it("a spec that JAX would refuse says why", () => {
  expect(faults(leaf, [["model"], ["model"]], sizes)).toEqual([
    "Mesh axis model is used twice; one array can use each axis only once.",
  ]);
  expect(faults(leaf, [[], ["data"]], sizes)[0]).toContain("4 does not divide dimension 1 (10)");
  expect(faults(leaf, [["data"], ["model"]], sizes)).toEqual([]);
});

it("candidates are those that JAX takes, and the one that saves most is first", () => {
  const found = candidates(leaf, leaf.spec, sizes);
  expect(found.map(({ spec }) => written(spec))).toEqual(["P('data')", "P(None, 'model')", "P('model')"]);
  expect(found[0].saved).toBe(64 * 10 * 4 * 0.75);
});

it("a spec is written as Python reads it", () => {
  expect(written([[], ["model", "data"], []])).toBe("P(None, ('model', 'data'))");
  expect(written([[], []])).toBe("P()");
  expect(written([["it's"]])).toBe("P('it\\'s')");
});

it("one dimension can be cut by several axes, in either order", () => {
  expect(axisChoices(["a", "b"])).toEqual([[], ["a"], ["b"], ["a", "b"], ["b", "a"]]);
});

it("what was tried is written as a cell", () => {
  const code = placementCode([{ path: "params['in']", spec: [[], ["model"]] }], { clients: 4, model: 2 });
  expect(code).toContain("params['in'] = jax.device_put(params['in'], NamedSharding(mesh, P(None, 'model')))");
  expect(code).toContain("(clients=4, model=2)");
});

it("names of somebody else's record stay names in code", () => {
  const code = placementCode([{ path: "w\nos.system('x')\n#", spec: [['a"]\nexit()']] }], { "m)\nexit()": 2 });
  expect(code.split("\n")).toHaveLength(5);
  expect(code).toContain("w_os.system_'x'___ = jax.device_put(w_os.system_'x'___, ");
  expect(code).toContain("P('a\"]\\nexit()')");
});

it("one axis for a whole module cuts every matrix along its longest dimension", () => {
  const made = (path: string, shape: number[]): ShardingLeaf => ({ ...leaf, path, shape, spec: shape.map(() => []) });
  const module = [made("up", [64, 256]), made("down", [256, 64]), made("bias", [256]), made("odd", [3, 5])];
  const [first, second] = groupOffers(module, ({ spec }) => spec, sizes);
  expect(first.axis).toBe("data");
  expect(first.saved).toBe(2 * 64 * 256 * 4 * 0.75);
  expect(second.changed.map(({ leaf: { path }, spec }) => [path, written(spec)])).toEqual([
    ["up", "P(None, 'model')"],
    ["down", "P('model')"],
  ]);
  expect(groupOffers([made("odd", [3, 5])], ({ spec }) => spec, sizes)).toEqual([]);
});
