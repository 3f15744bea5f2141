import { expect, it } from "vitest";
import type { MeshLayout } from "../lib/states";
import { gridOf, heldWords, Mesh, nearest, neighbour } from "./mesh-data";

const state: Record<string, unknown> = {
  axes: [
    { name: "data", size: 2, type: "auto", hops: null },
    { name: "model", size: 2, type: "auto", hops: null },
  ],
  choices: [],
  layouts: [],
  held: { 0: [["clients", 0, 2, 0]], 1: [["clients", 2, 3, 0]] },
  names: { all: "cpu" },
  leaves: [{ name: "w", shape: [8, 4], shard_shape: [4, 4], bytes: 64 }],
};
const arrays: Record<string, number[]> = {
  "mesh.id": [0, 1, 2, 3],
  "mesh.axis0": [0, 0, 1, 1],
  "mesh.axis1": [0, 1, 0, 1],
  "mesh.shards.0": [0, 0, 0, 0, 1, 0, -1, -1],
};
const mesh = new Mesh({
  state: <T>(name: string) => state[name] as T,
  array: (name) => Float32Array.from(arrays[name]),
});

it("devices that differ along one axis alone are a group", () => {
  expect([...mesh.groupOf(0, "model")]).toEqual([0, 1]);
  expect([...mesh.groupOf(0, "data")]).toEqual([0, 2]);
  expect([...mesh.groupsAlong("data")]).toEqual([0, 1, 0, 1]);
});

it("a device says what it holds", () => {
  expect(mesh.spoken(0)).toBe("cpu:0: data 0, model 0: clients 0–1");
  expect(heldWords([["clients", 2, 3, 0]])).toBe("clients 2");
  expect([...mesh.holding(2)]).toEqual([1]);
});

it("shards are slices", () => {
  expect(mesh.shardsOf(2)).toEqual([["w", "[4:8, :]", 64]]);
  expect(mesh.shardsOf(3)).toEqual([]);
});

it("gaps are jumped over and belong to the nearest device", () => {
  const layout: MeshLayout = { key: "mesh", label: "", columns: 3, rows: 1, reading: "", svg: "" };
  const places = Float32Array.from([0, 0, 2, 0]);
  const grid = gridOf(layout, places);
  expect([...grid]).toEqual([0, -1, 1]);
  expect(neighbour(layout, places, grid, 0, 1, 0)).toBe(1);
  expect(neighbour(layout, places, grid, 1, 1, 0)).toBe(1);
  expect(nearest(layout, grid, 1)).toBe(0);
});
