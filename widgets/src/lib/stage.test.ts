import { describe, expect, it, vi } from "vitest";
import { h } from "./dom";
import { actOf, isFree, nextSize, offerStep, stageButton, takeSteps } from "./stage";

function view(step = vi.fn()) {
  const signal = new AbortController();
  const host = h("div", {});
  const list = h("div", { tabindex: 0 });
  const root = h("section", { class: "wb-shell" }, host, list);
  const said: string[] = [];
  const made = stageButton(host, { signal: signal.signal, say: (text) => said.push(text), step });
  host.append(made);
  document.body.replaceChildren(root);
  const press = (key: string, at: Element = list) =>
    at.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  return { signal, host, list, root, made, said, step, press };
}

describe("keys of a presenter", () => {
  it("are those that remote controls send", () => {
    expect(["PageDown", "PageUp", "b", ".", "Escape", "x"].map(actOf)).toEqual([
      "next",
      "back",
      "blank",
      "blank",
      "leave",
      undefined,
    ]);
  });
  it("stay letters where a reader types", () => {
    const field = h("input", { type: "text" });
    expect(isFree("b", field)).toBe(false);
    expect(isFree("PageDown", field)).toBe(true);
  });
  it("change the size within limits", () => {
    expect(nextSize(2.5, "larger")).toBe(2.5);
    expect(nextSize(1.5, "smaller")).toBe(1.25);
    expect(nextSize(1.5, "next")).toBe(1.5);
  });
});

describe("the stage", () => {
  it("does nothing with keys before it is entered", () => {
    const { press, step } = view();
    press("PageDown");
    expect(step).not.toHaveBeenCalled();
  });
  it("steps, also where a list would use the key", () => {
    const { made, list, press, step, root } = view();
    const own = vi.fn((event: Event) => event.stopPropagation());
    list.addEventListener("keydown", own);
    made.click();
    expect(root.classList.contains("wb-onstage")).toBe(true);
    press("PageDown");
    press("PageUp");
    expect(step.mock.calls).toEqual([[1], [-1]]);
    expect(own).not.toHaveBeenCalled();
    press("ArrowRight"); // the list's
    expect(step).toHaveBeenCalledTimes(2);
    press("ArrowRight", root);
    expect(step).toHaveBeenCalledTimes(3);
  });
  it("blanks, and any key shows the view again without a step", () => {
    const { made, press, root, step } = view();
    made.click();
    const blank = root.querySelector<HTMLElement>(".wb-blank");
    press("b");
    expect(blank?.hidden).toBe(false);
    press("PageDown");
    expect(blank?.hidden).toBe(true);
    expect(step).not.toHaveBeenCalled();
  });
  it("grows, and ends with Escape", () => {
    const { made, press, root } = view();
    made.click();
    press("+");
    expect(root.style.getPropertyValue("--wb-stage")).toBe("1.75");
    press("Escape");
    expect(root.classList.contains("wb-onstage")).toBe(false);
    expect(root.querySelector(".wb-blank")).toBeNull();
    expect(made.getAttribute("aria-pressed")).toBe("false");
  });
  it("leaves Ctrl and + to the browser", () => {
    const { made, list, root } = view();
    made.click();
    list.dispatchEvent(new KeyboardEvent("keydown", { key: "+", ctrlKey: true, bubbles: true }));
    expect(root.style.getPropertyValue("--wb-stage")).toBe("1.5");
  });
  it("ends with the view", () => {
    const { made, signal, root } = view();
    made.click();
    signal.abort();
    expect(root.classList.contains("wb-onstage")).toBe(false);
  });
});

describe("a step", () => {
  it("goes to what is visible, and on where that has no more", () => {
    const { host, root, made, press, step, signal } = view();
    let left = 1;
    takeSteps(host, () => left-- > 0, signal.signal);
    made.click();
    press("PageDown");
    expect(step).not.toHaveBeenCalled();
    press("PageDown");
    expect(step).toHaveBeenCalledWith(1);
    host.hidden = true;
    left = 1;
    expect(offerStep(root, 1)).toBe(false);
  });
});
