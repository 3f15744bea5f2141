import { describe, expect, it } from "vitest";
import type { PlayedRound, PlayedStage, PlayedValue } from "../lib/states";
import { ease, frameAt, framesOf, gridOf, mainCourse, movesOf } from "./frames";

const value = (norms: number[], distances: number[] = []): PlayedValue => ({
  name: "w",
  shape: [4, 2],
  dtype: "float32",
  size_bytes: 32,
  norms,
  distances,
  picture: [],
  picture_shape: [0, 0],
});
const stage = (kind: PlayedStage["kind"], more: Partial<PlayedStage> = {}): PlayedStage => ({
  path: "0",
  kind,
  name: kind,
  clients: 2,
  moved_bytes: 64,
  values: [],
  line: null,
  ...more,
});
const round: PlayedRound = {
  name: "fedavg",
  stages: [
    stage("broadcast"),
    stage("clients", { name: "train", values: [value([3, 3], [1, 2])] }),
    stage("reduce", { name: "reduce_mean", values: [value([5])] }),
    stage("server"),
  ],
  courses: [
    { name: "drift", values: [[1], [2]] },
    {
      name: "loss",
      values: [
        [4, 2, 1],
        [2, 2, null],
      ],
    },
  ],
  pictured: [0, 1],
  clients: 2,
};

describe("frames", () => {
  it("are one per movement and one per local step", () => {
    expect(framesOf(round).map(({ kind, step, steps }) => [kind, step, steps])).toEqual([
      ["down", 1, 1],
      ["local", 1, 3],
      ["local", 2, 3],
      ["local", 3, 3],
      ["up", 1, 1],
      ["result", 1, 1],
      ["server", 1, 1],
    ]);
  });
  it("say what happens, with the program's own numbers", () => {
    const said = framesOf(round).map(({ sentence }) => sentence);
    expect(said[0]).toBe("The server sends to every client: 2 × 32 B = 64 B.");
    expect(said[1]).toBe("Local step 1 of 3 in train: mean loss 3.");
    expect(said[3]).toBe("Local step 3 of 3 in train: mean loss 1. On average, a client moved by 1.5.");
    expect(said[5]).toBe("reduce_mean reduces 2 values to one, of norm 5.");
  });
  it("take many steps several at a time", () => {
    const long = { ...round, courses: [{ name: "loss", values: [Array.from({ length: 200 }, () => 1)] }] };
    const local = framesOf(long).filter(({ kind }) => kind === "local");
    expect([local.length, local.at(-1)?.step]).toEqual([24, 200]);
  });
  it("without emitted numbers have one frame of work", () => {
    expect(framesOf({ ...round, courses: [] }).filter(({ kind }) => kind === "local")).toHaveLength(1);
  });
});

describe("helpers", () => {
  it("prefer a loss over the local steps", () => {
    expect(mainCourse(round.courses)?.name).toBe("loss");
  });
  it("tell an update from a new model", () => {
    expect(movesOf(value([3, 3], [1, 2]))).toEqual({ moves: [1, 2], from: true });
    expect(movesOf(value([1, 1], [3, 3]))).toEqual({ moves: [1, 1], from: false });
  });
  it("find the frame of a moment", () => {
    expect(frameAt(2.25, 5)).toEqual({ index: 2, passed: 0.25 });
    expect(frameAt(9, 5)).toEqual({ index: 4, passed: 1 });
  });
  it("ease in and out", () => {
    expect([ease(0), ease(0.5), ease(1)]).toEqual([0, 0.5, 1]);
  });
  it("lay cells out as squares", () => {
    expect(gridOf(16, 400, 100)).toEqual({ columns: 8, rows: 2 });
    expect(gridOf(1, 10, 10)).toEqual({ columns: 1, rows: 1 });
  });
});
