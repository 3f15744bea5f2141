import { expect, test } from "vitest";
import type { Reader } from "../lib/view";
import { Calls } from "./calls";

// 0 step ─ 1 layer_0 (2 down) and 3 layer_1 (4 down)
const state: Record<string, unknown> = {
  names: ["step", "layer_0", "down", "layer_1", "down"],
  keys: [],
  places: [],
  scopes: [],
  kinds: ["scope"],
  passes: ["forward"],
  instructions: {},
  collectives: {},
  at_least: [4],
  columns: [
    { key: "measured", title: "measured", unit: "seconds" },
    { key: "predicted", title: "predicted", unit: "seconds" },
    { key: "flops", title: "FLOPs", unit: "flops" },
    { key: "sent", title: "sent", unit: "bytes" },
    { key: "sent/data", title: "sent over data", unit: "bytes" },
  ],
};
const totals: Record<string, number[]> = {
  parent: [-1, 0, 1, 0, 3],
  measured: [3, 1, 1, 2, 1],
  predicted: [Number.NaN, 1, 1, Number.NaN, Number.NaN],
  flops: [7000, 3000, 1000, 4000, 2000],
  sent: [0, 0, 0, 0, 0],
  "sent/data": [0, 0, 0, 0, 0],
};
const reader = {
  state: (name: string) => state[name],
  array: (name: string) => Float32Array.from(totals[name.replace(/^tree\.|\.own$/g, "")] ?? [0, 0, 0, 0, 0]),
} as unknown as Reader<"operations">;
const calls = new Calls(reader);

test("nodes inside of a match are counted once", () => {
  expect(calls.together((node) => node === 1 || node === 2)).toBe("1 s predicted, 3 kFLOP");
});

test("matches at several places are added, and what is unknown or a lower bound is said", () => {
  expect(calls.together((node) => calls.names[node] === "down")).toBe("predicted unknown, at least 3 kFLOP");
});
