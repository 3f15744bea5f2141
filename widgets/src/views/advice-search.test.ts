import { expect, it } from "vitest";
import type { ShardingChoice } from "../lib/states";
import { isLocked, sentText } from "./advice-search";

const choice = { axes: { x: [["data"], []] } } as unknown as ShardingChoice;

it("knows which specs of a choice are locked, replicated ones too", () => {
  expect(isLocked(choice, "x", { x: [["data"], []] })).toBe(true);
  expect(isLocked(choice, "x", { x: [[], ["data"]] })).toBe(false);
  expect(isLocked(choice, "w", { w: [] })).toBe(true);
  expect(isLocked(choice, "w", {})).toBe(false);
});

it("writes what one device sends in one line", () => {
  expect(sentText({ data: "2 MiB", model: "1 KiB" })).toBe("2 MiB over data, 1 KiB over model");
  expect(sentText({})).toBe("nothing");
});
