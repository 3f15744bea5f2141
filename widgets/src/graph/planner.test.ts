import { expect, it } from "vitest";
import { type Ask, Planner } from "./planner";
import { type Job, layOut } from "./worker";

const JOB: Job = {
  boxes: [0, 1].map((id) => ({ id, parent: -1, open: false, rest: 0 })),
  arcs: [{ from: 0, to: 1, bytes: 4, values: 1 }],
  sizes: new Map([
    [0, [100, 40]],
    [1, [60, 40]],
  ]),
};
const { signal } = new AbortController();

it("boxes have the sizes that were sent", () => {
  const { places } = layOut(JOB);
  expect(places.get(0)).toMatchObject({ width: 100, height: 40 });
  expect(places.get(1)).toMatchObject({ width: 60, height: 40 });
});

it("a newer question makes older ones void", async () => {
  const ask: Ask = async (job) => layOut(job);
  const planner = new Planner(signal, ask);
  const [first, second] = await Promise.all([planner.plan(JOB), planner.plan(JOB)]);
  expect(first).toBeNull();
  expect(second?.places.size).toBe(2);
});

it("a layout that fails is an error", async () => {
  const planner = new Planner(signal, () => Promise.reject(new Error("no layout")));
  await expect(planner.plan(JOB)).rejects.toThrow("no layout");
});
