import { describe, expect, it, vi } from "vitest";
import { button, h, pictureFrom, setTabIndex } from "./dom";

describe("an element", () => {
  it("holds text as text", () => {
    const node = h("p", {}, "<img src=x onerror=alert(1)>");
    expect(node.querySelector("img")).toBeNull();
    expect(node.textContent).toBe("<img src=x onerror=alert(1)>");
  });

  it("leaves out what is null or false", () => {
    const node = h("p", { title: null, hidden: false, lang: "en" }, null, false, ["a", [1]]);
    expect(node.outerHTML).toBe('<p lang="en">a1</p>');
  });

  it("listens", () => {
    const clicked = vi.fn();
    button("go", clicked).click();
    expect(clicked).toHaveBeenCalledOnce();
  });
});

describe("keys that a notebook would act on stay in the view", () => {
  it.each(["button", "input", "select", "textarea", "summary", "a"] as const)("in a %s", (tag) => {
    expect(h(tag).hasAttribute("data-lm-suppress-shortcuts")).toBe(true);
  });

  it("in whatever gets a place in the tab order", () => {
    const node = h("div", { tabindex: 0 });
    const later = h("div");
    setTabIndex(later, -1);
    for (const each of [node, later]) expect(each.hasAttribute("data-lm-suppress-shortcuts")).toBe(true);
  });
});

it("a picture loses what could run or load something", () => {
  const svg = pictureFrom(
    '<svg xmlns="http://www.w3.org/2000/svg"><script>1</script><rect onclick="1" fill="url(http://x)"/><a href="x"/></svg>',
  );
  expect(svg.querySelector("script, a")).toBeNull();
  expect(svg.querySelector("rect")?.attributes.length).toBe(0);
});
