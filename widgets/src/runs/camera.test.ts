import { describe, expect, it } from "vitest";
import { axisOf, exactSeconds, framed, inside, panned, zoomed } from "./camera";

describe("camera", () => {
  it("keeps the moment under the pointer while zooming", () => {
    const made = zoomed({ from: 2, to: 6 }, 0.5, 0.25, 10);
    expect(made).toEqual({ from: 2.5, to: 4.5 });
    expect(made.from + 0.25 * 2).toBe(3);
  });
  it("never leaves the run", () => {
    expect(zoomed({ from: 2, to: 6 }, 100, 0.5, 10)).toEqual({ from: 0, to: 10 });
    expect(panned({ from: 8, to: 10 }, 3, 10)).toEqual({ from: 8, to: 10 });
    expect(panned({ from: 2, to: 4 }, -3, 10)).toEqual({ from: 0, to: 2 });
    expect(inside({ from: -5, to: 50 }, 10)).toEqual({ from: 0, to: 10 });
  });
  it("shows a stretch with room around it", () => {
    expect(framed(4, 6, 10, 0.5)).toEqual({ from: 3, to: 7 });
  });
  it("names ticks from 0, and far in from a moment that is named once", () => {
    expect(axisOf({ from: 0, to: 0.4 }, 440).ticks.map(({ text }) => text)).toEqual([
      "0 s",
      "100 ms",
      "200 ms",
      "300 ms",
      "400 ms",
    ]);
    const deep = axisOf({ from: 1, to: 1.00001 }, 440);
    expect(deep.base).toBe(1);
    expect(deep.ticks[1].text).toMatch(/^\+/);
  });
  it("writes a moment as exactly as the zoom shows it", () => {
    expect(exactSeconds(0.1234567, 1e-3)).toBe("123 ms");
    expect(exactSeconds(0.1234567, 1e-6)).toBe("123.457 ms");
  });
});
