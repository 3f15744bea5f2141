import { describe, expect, it } from "vitest";
import { hueOf } from "./paint";
import { traceParts } from "./perfetto";
import { countBefore, depthOf, rowsOf, Scene } from "./scene";
import { NOTHING, placeOf } from "./spans";

const columns = {
  start: Float64Array.of(0, 0, 1, 2),
  seconds: Float32Array.of(1, 2, 1, 1),
  place: Uint32Array.of(placeOf(0, 0), placeOf(1, 0), placeOf(0, 2), placeOf(0, 1)),
  name: Uint32Array.of(0, 0, 1, 1),
  path: Uint32Array.of(0, 0, 1, 1),
  awaited: Uint32Array.of(NOTHING, NOTHING, 1, NOTHING),
};
const data = {
  title: "round",
  devices: ["cpu:0", "cpu:1"],
  device_ids: [0, 1],
  names: ["dot.1", "all-reduce.1"],
  paths: [
    { frames: ["train", "loss"], stage: "1", line: "cell:3" },
    { frames: ["mean"], stage: "2", line: null },
  ],
  rounds: [0],
  calls: 1,
  sentence: "",
  notes: [],
};

describe("scene", () => {
  it("puts levels above the operations of every track", () => {
    const { rows, height } = rowsOf([0, 0], 2);
    expect(rows.map(({ track, depth }) => [track, depth])).toEqual([
      [0, 0],
      [0, 1],
      [0, -1],
      [1, 0],
      [1, 1],
      [1, -1],
    ]);
    expect(height).toBeGreaterThan(rows[5].top + rows[5].height);
  });
  it("repeats no levels above what a device does beside its first lane", () => {
    const { rows } = rowsOf([0, 1], 2);
    expect(rows.map(({ track, depth }) => [track, depth])).toEqual([
      [0, 0],
      [0, 1],
      [0, -1],
      [1, -1],
    ]);
  });
  it("starts with the levels with which every device is in sight", () => {
    const scene = new Scene(data, columns);
    expect([scene.fitting(10_000), scene.fitting(10)]).toEqual(["all", "operations"]);
  });
  it("shows as many levels as are asked for", () => {
    expect([depthOf("operations", 9), depthOf("stages", 9), depthOf("all", 3)]).toEqual([0, 1, 3]);
  });
  it("finds a span again in its track", () => {
    const scene = new Scene(data, columns);
    expect(scene.find(3)).toEqual({ track: 0, at: 2 });
    expect(scene.find(1)).toEqual({ track: 1, at: 0 });
    expect(scene.end).toBe(3);
  });
  it("counts highlighted spans", () => {
    const scene = new Scene(data, columns);
    expect([...countBefore(columns, scene.tracks[0], Uint8Array.of(0, 1))]).toEqual([0, 0, 1, 2]);
  });
  it("keeps the colour of a name", () => {
    expect(hueOf("train", 7)).toBe(hueOf("train", 7));
    expect(hueOf("train", 7)).toBeLessThan(7);
  });
});

describe("trace file", () => {
  it("is JSON with every span, in microseconds", () => {
    const { traceEvents } = JSON.parse(traceParts(new Scene(data, columns)).join(""));
    const spans = traceEvents.filter(({ ph }: { ph: string }) => ph === "X");
    expect(spans.map(({ name, ts, dur, tid }: Record<string, unknown>) => [name, ts, dur, tid])).toEqual([
      ["dot.1", 0, 1e6, 0],
      ["wait: all-reduce.1", 1e6, 1e6, 0],
      ["all-reduce.1", 2e6, 1e6, 0],
      ["dot.1", 0, 2e6, 1],
    ]);
    expect(spans[0].args).toEqual({ path: "train > loss", stage: "1", line: "cell:3" });
  });
});
