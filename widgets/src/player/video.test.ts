import { expect, it } from "vitest";
import { endingOf, videoKind } from "./video";

it("MP4 is recorded where the browser can, else WebM, else nothing", () => {
  expect(videoKind(() => true)).toContain("mp4");
  expect(endingOf(videoKind((kind) => kind.includes("webm")) ?? "")).toBe("webm");
  expect(videoKind(() => false)).toBeNull();
});
