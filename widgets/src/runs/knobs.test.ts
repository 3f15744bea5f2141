import { describe, expect, it } from "vitest";
import { knobOf, nearest, positionsOf } from "./knobs";

const alpha = { name: "alpha", label: "α", help: "", low: 0.05, high: 12.8, factor: 2, last: "none" };

describe("knobs", () => {
  it("have positions by factor or by step", () => {
    expect(positionsOf({ ...alpha, high: 0.4 })).toEqual([0.05, 0.1, 0.2, 0.4]);
    expect(positionsOf({ ...alpha, factor: undefined, low: 0, high: 0.3, step: 0.1 })).toEqual([0, 0.1, 0.2, 0.3]);
  });
  it("find the position next to a value", () => {
    expect(nearest([0.05, 0.1, 0.2], 0.14)).toBe(1);
  });
  it("keep a value between two positions until they are moved", () => {
    const knob = knobOf(alpha, 0.3);
    expect(knob.get()).toBe(0.3);
    const slider = knob.node.querySelector("input") as HTMLInputElement;
    slider.dispatchEvent(new Event("input"));
    expect(knob.get()).toBe(0.4);
  });
  it("name the last position", () => {
    expect(knobOf(alpha, 12.8).node.querySelector("output")?.textContent).toBe("none");
  });
});
