import { describe, expect, it } from "vitest";
import { insertCell } from "./notebook";

function hosted(ids: (string | null)[]) {
  const made: [number, string][] = [];
  const cells = ids.map((id) => ({
    toJSON: () => ({ outputs: id ? [{ data: { "application/vnd.jupyter.widget-view+json": { model_id: id } } }] : [] }),
  }));
  const sharedModel = { cells, insertCell: (at: number, { source }: { source: string }) => made.push([at, source]) };
  return { made, model: { model_id: "mine", widget_manager: { context: { model: { sharedModel } } } } };
}

describe("a new cell", () => {
  it("goes below the cell that shows the view", () => {
    const { made, model } = hosted([null, "mine", "other"]);
    expect(insertCell(model, "x = 1")).toBe(true);
    expect(made).toEqual([[2, "x = 1"]]);
  });
  it("goes to the end where no cell shows it", () => {
    const { made, model } = hosted([null, "other"]);
    insertCell(model, "x");
    expect(made[0][0]).toBe(2);
  });
  it("is refused where there is no notebook", () => {
    expect(insertCell({}, "x")).toBe(false);
  });
});
