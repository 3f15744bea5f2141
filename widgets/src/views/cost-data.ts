// What a program costs on one target, as Python sends it.
import type { StageCost } from "../lib/states";

/** Whether anything is counted for a stage. */
export const costsSomething = (stage: StageCost): boolean =>
  Boolean(
    stage.unknown.length ||
      stage.flops ||
      stage.elementwise ||
      stage.accessed ||
      stage.seconds ||
      Object.values(stage.wire).some(Boolean),
  );

export const axesOf = (stages: readonly StageCost[]): string[] => [
  ...new Set(stages.flatMap(({ wire }) => Object.keys(wire))),
];

/** Parts of a stage's time: compute and memory run together, so the longer of them counts, then each axis. */
export function timeParts(stage: StageCost): [string, number][] {
  const [compute, memory] = [stage.compute ?? 0, stage.memory ?? 0];
  const long: [string, number] = compute >= memory ? ["compute", compute] : ["memory", memory];
  return [long, ...Object.entries(stage.wire_seconds)];
}
