import { expect, test } from "vitest";
import { type Entry, entriesOf, findEntries } from "./finder";
import type { Reader, ViewName } from "./view";

const reader = (state: Record<string, unknown>, arrays: Record<string, number[]> = {}): Reader<never> => ({
  state: (name: PropertyKey) => state[String(name)] as never,
  array: (name: string) => Float32Array.from(arrays[name] ?? []),
});
const parts: Partial<Record<ViewName, Reader<never>>> = {
  operations: reader(
    {
      names: ["step", "mlp", "mlp"],
      keys: ["", "a.py:3", "a.py:9"],
      places: ["", "a.py:3", "a.py:9"],
      columns: [{ key: "flops" }],
    },
    { "tree.flops": [9, 2, 7] },
  ),
  hlo: reader({
    count: 2,
    collectives: [{ name: "all-reduce.1", axes: "data", sent: 1024 }],
    code: [["/x/a.py", "a.py", [[3, "  h = mlp(x)"]]]],
    sources: [["/x/a.py", 3, "a.py:3"]],
  }),
  sharding: reader({ leaves: [{ path: "params.mlp.w", type: "f32[4]", spec_text: "P()" }] }),
};
const entries = entriesOf({ of: (view) => parts[view] ?? null });
const found = (...words: string[]) => findEntries(entries, words).map(({ kind, text }: Entry) => [kind, text]);

test("operations, lines and arrays are found by one word, larger ones first", () => {
  expect(found("mlp")).toEqual([
    ["operation", "mlp"],
    ["operation", "mlp"],
    ["array", "params.mlp.w"],
    ["line", "a.py:3"],
  ]);
  expect(findEntries(entries, ["mlp"])[0].select).toEqual({ node: "2", line: "a.py:9", instruction: null });
});

test("collectives are found by their mesh axis, and every word has to match", () => {
  expect(found("data")).toEqual([["collective", "all-reduce.1"]]);
  expect(found("mlp", "data")).toEqual([]);
  expect(found()).toEqual([]);
});
