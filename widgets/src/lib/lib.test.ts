import { describe, expect, it, vi } from "vitest";
import { glossaryKey } from "./glossary";
import { rove } from "./keyboard";
import { createContext, floats, type Model, Requests, type Shared } from "./model";
import { correlation, position, quantile, range, suitsLog, ticks } from "./scale";
import { describeChosen, merge } from "./selection";
import { placeTip } from "./tooltip";
import { revealed, visibleWindow } from "./window";

class FakeModel implements Model {
  sent: Record<string, unknown>[] = [];
  private readonly listeners = new Map<string, Set<(...values: never[]) => void>>();
  constructor(private readonly traits: Record<string, unknown>) {}
  get = (name: string) => this.traits[name];
  set(name: string, value: unknown) {
    this.traits[name] = value;
    this.emit(`change:${name}`);
  }
  save_changes() {}
  send = (content: unknown) => this.sent.push(content as Record<string, unknown>);
  on = (event: string, callback: (...values: never[]) => void) =>
    this.listeners.set(event, (this.listeners.get(event) ?? new Set()).add(callback));
  off = (event: string, callback: (...values: never[]) => void) => this.listeners.get(event)?.delete(callback);
  emit(event: string, ...values: unknown[]) {
    for (const callback of this.listeners.get(event) ?? []) callback(...(values as never[]));
  }
  get count() {
    return [...this.listeners.values()].reduce((sum, each) => sum + each.size, 0);
  }
}

function contextOf(traits: Record<string, unknown>, key: "" | "advice" = "") {
  const model = new FakeModel(traits);
  const end = new AbortController();
  const fail = vi.fn();
  const say = vi.fn();
  const chunk = <T>() => Promise.resolve({} as T);
  const shared: Shared = { model, signal: end.signal, fail, say, open: () => {}, chunk };
  const requests = new Requests(model, say, end.signal);
  return { model, end, fail, context: createContext(document.createElement("div"), key, shared, requests) };
}

describe("a context", () => {
  it("shows a view its own part of a model", () => {
    const { context } = contextOf(
      { data: { advice: { missing: "why" } }, live: { "advice/job": 1 }, settings: { "advice/part": "findings" } },
      "advice",
    );
    expect([context.state("missing"), context.live("job"), context.setting("part", "")]).toEqual([
      "why",
      1,
      "findings",
    ]);
    expect(context.setting("other", "fallback")).toBe("fallback");
  });

  it("keeps the settings of other views", () => {
    const { context, model } = contextOf({ settings: { "cost/chip": "v5e" } }, "advice");
    context.set("face", "graph");
    expect(model.get("settings")).toEqual({ "cost/chip": "v5e", "advice/face": "graph" });
  });

  it("selects only what changes", () => {
    const { context, model } = contextOf({ selection: { stage: "1" } });
    const heard = vi.fn();
    context.onSelection(heard);
    context.select({ stage: "1" });
    expect(heard).not.toHaveBeenCalled();
    context.select({ stage: null, client: 3 });
    expect(model.get("selection")).toEqual({ client: 3 });
    expect(heard).toHaveBeenCalledOnce();
  });

  it("is deaf once its view is gone", () => {
    const { context, model, end } = contextOf({});
    context.onSelection(() => {});
    context.onLive(() => {});
    end.abort();
    expect(model.count).toBe(0);
  });

  it("shows the error of a listener", () => {
    const { context, model, fail } = contextOf({});
    context.onLive(() => {
      throw new Error("broken");
    });
    model.emit("change:live");
    expect(fail).toHaveBeenCalledOnce();
  });
});

describe("a request", () => {
  const idOf = (model: FakeModel) => model.sent.find(({ kind }) => kind === "request")?.id;

  it("is answered", async () => {
    const { context, model } = contextOf({});
    const asked = context.request("scale", { clients: 3 });
    expect(model.sent[0]).toMatchObject({ kind: "request", name: "scale", args: { clients: 3 } });
    model.emit("msg:custom", { kind: "response", id: idOf(model), value: 42 });
    expect(await asked).toBe(42);
  });

  it("reports progress on the way", async () => {
    const { context, model } = contextOf({});
    const onProgress = vi.fn();
    const asked = context.request("compile", {}, { onProgress });
    model.emit("msg:custom", { kind: "progress", id: idOf(model), progress: { phase: "lowering" } });
    model.emit("msg:custom", { kind: "response", id: idOf(model), value: null });
    await asked;
    expect(onProgress).toHaveBeenCalledWith({ phase: "lowering" });
  });

  it("shows the kernel's error, and fails", async () => {
    const { context, model, fail } = contextOf({});
    const asked = context.request("scale");
    model.emit("msg:custom", {
      kind: "response",
      id: idOf(model),
      error: { message: "ValueError: no", traceback: "t" },
    });
    await expect(asked).rejects.toThrow("ValueError: no");
    expect(fail).toHaveBeenCalledOnce();
  });

  it("is cancelled in the kernel, without an error on the screen", async () => {
    const { context, model, fail } = contextOf({});
    const stop = new AbortController();
    const asked = context.request("compile", {}, { signal: stop.signal });
    stop.abort();
    await expect(asked).rejects.toThrow("Stopped");
    expect(model.sent[1]).toEqual({ kind: "cancel", id: idOf(model) });
    expect(fail).not.toHaveBeenCalled();
  });

  it("is refused where no kernel is", async () => {
    const { context, model } = contextOf({ offline: true });
    await expect(context.request("scale", {}, { quiet: true })).rejects.toThrow("no kernel");
    expect(model.sent).toEqual([]);
  });
});

it("a selection that stays the same is the same object", () => {
  const before = { stage: "1" };
  expect(merge(before, { stage: "1", client: null })).toBe(before);
});

it("a chosen line names its file, or that it is in a cell", () => {
  expect(describeChosen("line", "/project/fedavg.py:12")).toBe("line fedavg.py:12");
  expect(describeChosen("line", "/tmp/ipykernel_7/123.py:3")).toBe("line 3 of a cell");
});

it("a plural and a suffix are found in the glossary", () => {
  const words = { FLOPs: "", "bytes per device": "", collective: "" };
  expect(glossaryKey(words, "FLOPs per client")).toBe("FLOPs");
  expect(glossaryKey(words, "bytes per device")).toBe("bytes per device");
  expect(glossaryKey(words, "collectives")).toBe("collective");
  expect(glossaryKey(words, "other")).toBeUndefined();
});

it("numbers come out of bytes at any alignment", () => {
  const bytes = new Uint8Array(9);
  new DataView(bytes.buffer).setFloat32(1, 2.5, true);
  expect([...floats(new DataView(bytes.buffer, 1, 8))]).toEqual([2.5, 0]);
});

describe("scales", () => {
  it("ranges leave out what is not finite", () => {
    expect(range([3, Number.NaN, 1])).toEqual([1, 3]);
    expect(range([])).toEqual([0, 0]);
  });
  it("ticks are round", () => {
    expect(ticks(0, 100)).toEqual([0, 50, 100]);
    expect(ticks(0, 0.9, 3)).toEqual([0, 0.5]);
  });
  it("a long tail suits a logarithmic scale", () => {
    expect(suitsLog([1, 1, 1, 1, 100])).toBe(true);
    expect(suitsLog([1, 2, 3])).toBe(false);
    expect(suitsLog([0, 1, 100])).toBe(false);
  });
  it("positions", () => {
    expect(position(10, 1, 100, true)).toBeCloseTo(0.5);
    expect(position(5, 5, 5, false)).toBe(0.5);
  });
  it("quantiles are interpolated", () => {
    expect(quantile([4, 1, 3, 2], 0.5)).toBe(2.5);
  });
  it("correlation of a line is one", () => {
    expect(correlation([1, 2, 3], [2, 4, 6])).toBeCloseTo(1);
    expect(correlation([1, 2, 3], [5, 5, 5])).toBeNaN();
  });
});

describe("long lists", () => {
  it("draw what is visible and a little more", () => {
    expect(visibleWindow(1000, 200, 20, 1000)).toEqual([44, 66]);
    expect(visibleWindow(0, 200, 20, 3)).toEqual([0, 3]);
  });
  it("scroll no more than needed", () => {
    expect(revealed(5, 0, 200, 20)).toBe(0);
    expect(revealed(10, 0, 200, 20)).toBe(20);
    expect(revealed(1, 100, 200, 20)).toBe(20);
  });
});

describe("a tip", () => {
  const page = { width: 800, height: 600 };
  it("is below its word", () => {
    expect(placeTip({ left: 10, top: 20, bottom: 40 }, { width: 100, height: 50 }, page)).toEqual({
      left: 10,
      top: 46,
    });
  });
  it("goes above and to the left where the window ends", () => {
    const word = { left: 780, top: 570, bottom: 590 };
    expect(placeTip(word, { width: 100, height: 50 }, page)).toEqual({ left: 694, top: 514 });
  });
});

it("one item of a group is in the tab order, and every item keeps its keys", () => {
  const box = document.createElement("div");
  const items = ["a", "b", "c"].map((text) => {
    const node = document.createElement("div");
    node.textContent = text;
    return node;
  });
  box.append(...items);
  document.body.append(box);
  const choose = vi.fn();
  rove(box, { items: () => items, choose });
  const press = (key: string) =>
    document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  items[0].focus();
  press("ArrowDown");
  expect(document.activeElement).toBe(items[1]);
  press("End");
  press("Enter");
  expect(choose).toHaveBeenCalledWith(items[2]);
  expect(items.map((node) => node.getAttribute("tabindex"))).toEqual(["-1", "-1", "0"]);
  expect(items.every((node) => node.hasAttribute("data-lm-suppress-shortcuts"))).toBe(true);
});
