// A round as frames: what moves, what is computed, and the sentence that says so. Nothing here draws.

import { formatBytes, formatCount, plural } from "../lib/format";
import type { PlayedCourse, PlayedRound, PlayedStage, PlayedValue } from "../lib/states";

export interface Frame {
  stage: number;
  kind: "server" | "down" | "local" | "up" | "result";
  /** Of a local frame: how many steps are done at its end, and of how many. */
  step: number;
  steps: number;
  sentence: string;
}

const MOST_STEPS = 24; // frames of one stage; more steps are taken several at a time

const mean = (values: readonly (number | null)[]): number | null => {
  const known = values.filter((value): value is number => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

/** Mean of a course over the clients after a step. */
const meanAt = (course: PlayedCourse, step: number): number | null =>
  mean(course.values.map((row) => row[step] ?? null));

/** How far clients went: from what they received, or in size where they return updates already. */
export function movesOf(value: PlayedValue | undefined): { moves: readonly number[]; from: boolean } {
  if (!value) return { moves: [], from: false };
  const { norms, distances } = value;
  const from = distances.length > 0 && distances.every((distance, i) => distance < norms[i]);
  return { moves: from ? distances : norms, from };
}

/** The course that is shown while clients work: the longest, and of these one called a loss. */
export function mainCourse(courses: readonly PlayedCourse[]): PlayedCourse | undefined {
  const length = (course: PlayedCourse) => course.values[0]?.length ?? 0;
  const isLoss = (course: PlayedCourse) => Number(/loss|cost|error/i.test(course.name));
  return [...courses].sort((a, b) => length(b) - length(a) || isLoss(b) - isLoss(a))[0];
}

function localFrames(stage: PlayedStage, index: number, course: PlayedCourse | undefined): Frame[] {
  const steps = course?.values[0]?.length ?? 1;
  const count = Math.min(steps, MOST_STEPS);
  const moved = movesOf(stage.values[0]);
  const average = mean(moved.moves);
  const end =
    average === null
      ? ""
      : ` On average, a client ${moved.from ? "moved by" : "returned values of norm"} ${formatCount(average)}.`;
  return Array.from({ length: count }, (_, i) => {
    const step = Math.round(((i + 1) * steps) / count);
    const value = course && steps > 1 ? meanAt(course, step - 1) : null;
    const said =
      value === null
        ? `${plural(stage.clients, "client")} compute ${stage.name}.`
        : `Local step ${step} of ${steps} in ${stage.name}: mean ${course?.name} ${formatCount(value)}.`;
    return { stage: index, kind: "local", step, steps, sentence: i === count - 1 ? said + end : said };
  });
}

function total(stage: PlayedStage): string {
  const each = stage.moved_bytes / Math.max(stage.clients, 1);
  return `${formatCount(stage.clients)} × ${formatBytes(each)} = ${formatBytes(stage.moved_bytes)}`;
}

const WORDS = { server: "The server computes", program: "The program computes", loop: "A loop:", branch: "A branch:" };

export function framesOf(played: PlayedRound): Frame[] {
  const course = mainCourse(played.courses);
  // The course belongs to the stage that does the most: the first one whose clients return arrays.
  const trained = played.stages.findIndex(
    ({ kind, values }) => kind === "clients" && values.some(({ shape }) => shape.length > 0),
  );
  return played.stages.flatMap((stage, index): Frame[] => {
    const one = (kind: Frame["kind"], sentence: string): Frame => ({ stage: index, kind, step: 1, steps: 1, sentence });
    if (stage.kind === "broadcast") return [one("down", `The server sends to every client: ${total(stage)}.`)];
    if (stage.kind === "clients") return localFrames(stage, index, index === trained ? course : undefined);
    if (stage.kind === "reduce")
      return [
        one("up", `Every client sends its value for ${stage.name}: ${total(stage)}.`),
        one("result", `${stage.name} reduces ${plural(stage.clients, "value")} to one${sizeOf(stage)}.`),
      ];
    return [
      one(
        "server",
        `${WORDS[stage.kind]} ${stage.name === "server" ? "on its own values" : stage.name}${sizeOf(stage)}.`,
      ),
    ];
  });
}

function sizeOf(stage: PlayedStage): string {
  const norm = stage.values[0]?.norms[0];
  return norm === undefined ? "" : `, of norm ${formatCount(norm)}`;
}

/** Where a moment lies: the frame, and how much of it has passed. */
export function frameAt(moment: number, count: number): { index: number; passed: number } {
  const index = Math.min(Math.max(Math.floor(moment), 0), count - 1);
  return { index, passed: Math.min(Math.max(moment - index, 0), 1) };
}

export const ease = (share: number): number => share * share * (3 - 2 * share);

/** Columns and rows of a grid of cells in a box, as square as they can be. */
export function gridOf(count: number, width: number, height: number): { columns: number; rows: number } {
  let columns = 1;
  const side = (n: number) => Math.min(width / n, height / Math.ceil(count / n));
  for (let n = 2; n <= count; n++) if (side(n) > side(columns)) columns = n;
  return { columns, rows: Math.ceil(count / columns) };
}
