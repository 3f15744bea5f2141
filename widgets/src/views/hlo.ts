// The compiled program: its collectives by line, its source beside the listings, its instructions, their graph.
import type { GraphPane, graphPane } from "../graph/pane";
import { type Block, showDetails } from "../lib/details";
import { button, h } from "../lib/dom";
import { split } from "../lib/split";
import type { RenderView, ViewContext } from "../lib/view";
import { type CollectivesTable, collectivesTable } from "./hlo-collectives";
import { Module } from "./hlo-data";
import { Instructions } from "./hlo-instructions";
import { Listings } from "./hlo-listings";
import { Inspector } from "./inspector";

type Face = "collectives" | "source" | "instructions" | "graph";
const ORDER: Face[] = ["collectives", "source", "instructions", "graph"];

class Hlo {
  private readonly module: Module;
  private readonly collectives: CollectivesTable;
  private readonly instructions: Instructions;
  private readonly listings: Listings;
  private readonly graphPlace = h("div", { class: "wb-graphpane" });
  private readonly detail: HTMLElement;
  private readonly inspector: Inspector;
  private readonly faces: Map<Face, { button: HTMLElement; node: HTMLElement }>;
  private graph: GraphPane | null = null;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"hlo">,
  ) {
    this.module = new Module(context);
    const { node, main, detail } = split(context, "Details of the selected instruction or line", 0.68);
    this.detail = detail;
    this.inspector = new Inspector(context, detail, { module: this.module });
    this.collectives = collectivesTable(context, this.module, (name, line) =>
      this.choose(this.module.find(name), line),
    );
    this.listings = new Listings(context, this.module);
    this.instructions = new Instructions(
      context,
      this.module,
      (i) => this.choose(i),
      (text) => this.listings.search(text),
    );
    const compiled: [Face, string, HTMLElement][] = [
      ["collectives", "Collectives", this.collectives.node],
      ["instructions", "Instructions", this.instructions.node],
    ];
    const made: [Face, string, HTMLElement][] = [["source", "Source and listings", this.listings.node]];
    if (this.module.count) made.push(...compiled);
    made.sort((a, b) => ORDER.indexOf(a[0]) - ORDER.indexOf(b[0]));
    if (context.state("graph")) made.push(["graph", "Graph", this.graphPlace]);
    this.faces = new Map(
      made.map(([key, title, pane]) => [key, { button: button(title, () => context.set("face", key)), node: pane }]),
    );
    const bar = h(
      "div",
      { class: "wb-faces", role: "group", "aria-label": "Show as" },
      [...this.faces.values()].map((each) => each.button),
    );
    main.append(
      h("div", { class: "wb-tools" }, bar, h("span", { class: "wb-note" }, context.state("facts"))),
      ...made.map(([, , pane]) => pane),
    );
    host.append(node);
    context.onSettings(() => this.show());
    context.onSelection(() => this.follow());
    this.show();
  }

  /** The open face; kept in the settings, so that Python can open one. */
  private show(): void {
    const wanted = this.context.setting<Face>("face", this.context.state("groups").length ? "collectives" : "source");
    const face = this.faces.has(wanted) ? wanted : "source";
    for (const [key, { button: made, node }] of this.faces) {
      made.setAttribute("aria-pressed", String(key === face));
      node.hidden = key !== face;
    }
    if (face === "source") this.listings.open().catch((error) => this.context.fail(error));
    if (face === "graph") this.openGraph().catch((error) => this.context.fail(error));
    this.follow();
  }

  private async openGraph(): Promise<void> {
    const { module, context } = this;
    if (!this.graph) {
      this.graphPlace.textContent = "Loading the graph …";
      const chunk = await context.chunk<{ graphPane: typeof graphPane }>("graph");
      if (context.signal.aborted) return;
      this.graph ??= chunk.graphPane(context, this.graphPlace, {
        module,
        choose: (i) => this.choose(i),
        chooseGroup: (node, key) =>
          context.select({ node: node < 0 ? null : String(node), line: key || null, instruction: null }),
      });
      this.follow();
    }
    this.graph.open();
  }

  private choose(i: number, line?: string | null): void {
    if (i < 0) return this.context.select({ line: line ?? null, instruction: null, node: null });
    const { module } = this;
    this.context.select({
      instruction: module.names[i],
      line: (line ?? module.lineOf(i)) || null,
      stage: this.stageOf(i),
      node: null,
    });
  }

  /** The stage of an instruction, unless all are of the same one: that says nothing. */
  private stageOf(i: number): string | null {
    const { stages, stage } = this.module;
    return stages.filter(Boolean).length > 1 ? stages[stage[i]] || null : null;
  }

  private follow(): void {
    const { instruction, line } = this.context.selection;
    const i = this.module.find(instruction);
    this.collectives.select(instruction, line);
    this.instructions.select(i);
    if (!this.listings.node.hidden) this.listings.follow();
    this.graph?.mark(i >= 0 ? [i] : this.marks(), i);
    if (!this.inspector.show()) this.overview();
  }

  /** What a chosen line, axis or stage means in instructions. */
  private marks(): number[] {
    const { module } = this;
    const { line, axis, stage } = this.context.selection;
    if (line) return module.ofLine(line);
    const all = module.names.map((_, i) => i);
    if (axis) return all.filter((i) => module.jointOf(i)?.axis_names.includes(axis));
    return stage ? all.filter((i) => module.stages[module.stage[i]] === stage) : [];
  }

  private overview(): void {
    const { module } = this;
    if (!module.count) {
      const title = this.context.state("sentence");
      const text =
        "The compiled listing, its collectives and its memory need a compilation: pass a mesh of devices, or a target " +
        "such as v5e:4x4.";
      return showDetails(this.context, this.detail, {
        title,
        kind: "server",
        subtitle: "",
        blocks: [{ form: "note", title: "", text }],
      });
    }
    const text = "Select a collective, a line of your source or an instruction: all views follow.";
    const blocks: Block[] = [{ form: "note", title: "Look closer", text }];
    const [title, ...rest] = this.context.state("sentence").split(": ");
    showDetails(this.context, this.detail, { title, kind: "server", subtitle: rest.join(": "), blocks });
  }
}

export const hlo: RenderView<"hlo"> = (host, context) => {
  if (context.state("count") || context.state("stable")) new Hlo(host, context);
  else host.append(h("p", { class: "wb-note wb-scrolls" }, context.state("missing")));
};
