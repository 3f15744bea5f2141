// What boxes of the graph say, in pictures and to screen readers.
import { formatBytes, formatCount, formatWork } from "../lib/format";
import type { Module } from "../views/hlo-data";
import { type Box, type Graph, groupOfRest, isRest, ROOT } from "./model";

export interface GroupLabel {
  title: string;
  kind: string;
}

const LONGEST = 34;
export const shorten = (text: string, most = LONGEST): string =>
  text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}`;
export const plural = (count: number, noun: string): string => `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;

export interface Words {
  title: string;
  facts: string;
  kind: string;
  /** Of the module's memory traffic, 0 … 1. */
  share: number;
}

/** Names, figures and kinds of the boxes of one graph. */
export class Labels {
  constructor(
    private readonly graph: Graph,
    private readonly module: Module,
    private readonly groups: readonly GroupLabel[],
    private readonly kinds: readonly string[],
  ) {}

  title(id: number): string {
    if (id === ROOT) return "the module";
    if (isRest(id)) return "more";
    return this.graph.isGroup(id) ? this.groups[id].title : this.module.names[this.graph.instructionOf(id)];
  }

  folds(id: number): boolean {
    return this.graph.isGroup(id);
  }

  words(box: Box): Words {
    const { id, rest } = box;
    if (rest) {
      const inside = this.title(groupOfRest(id));
      return { title: `${formatCount(rest)} more`, facts: `smaller, in ${shorten(inside, 22)}`, kind: "", share: 0 };
    }
    const share = this.graph.shareOf(id);
    const kind = this.kindOf(id);
    if (this.graph.isGroup(id)) return { title: shorten(this.title(id)), facts: this.sums(id), kind, share };
    const i = this.graph.instructionOf(id);
    const joint = this.module.jointOf(i);
    const facts = joint
      ? `${formatBytes(joint.sent)} sent over ${joint.axes}`
      : [shapeOf(this.module.shapes[i]), this.figures(i)].filter(Boolean).join(" · ");
    return { title: shorten(this.title(id)), facts: shorten(facts, 42), kind, share };
  }

  private figures(i: number): string {
    const runs = this.module.runs(i);
    return work(this.module.flops[i] * runs, this.module.elementwise[i] * runs);
  }

  private sums(group: number): string {
    let [flops, elementwise, sent] = [0, 0, 0];
    for (const i of this.instructionsOf(group)) {
      flops += this.module.flops[i] * this.module.runs(i) || 0;
      elementwise += this.module.elementwise[i] * this.module.runs(i) || 0;
      sent += this.module.sentBy(i);
    }
    const count = plural(this.graph.instructionsIn(group), "instruction");
    return [count, work(flops, elementwise), sent > 0 ? `${formatBytes(sent)} sent` : ""].filter(Boolean).join(" · ");
  }

  /** Every instruction in a group, the fusions that have groups of their own among them. */
  *instructionsOf(group: number): Iterable<number> {
    const own = this.graph.instructionOf(group);
    if (own >= 0) yield own;
    for (const member of this.graph.membersOf(group, true)) {
      if (this.graph.isGroup(member)) yield* this.instructionsOf(member);
      else yield this.graph.instructionOf(member);
    }
  }

  kindOf(id: number): string {
    if (isRest(id)) return "";
    const i = this.graph.instructionOf(id);
    if (i >= 0) return this.kinds[i];
    return this.groups[id].kind;
  }

  /** One sentence for a screen reader. */
  spoken(box: Box, inputs: number, outputs: number): string {
    const { title, facts } = this.words(box);
    const what = box.rest ? "folded members" : this.graph.isGroup(box.id) ? "group" : "instruction";
    const state = this.graph.isGroup(box.id) ? (box.open ? ", open" : ", folded") : "";
    return `${what} ${title}${state}: ${facts}. ${plural(inputs, "input")}, ${plural(outputs, "output")}.`;
  }
}

const work = (flops: number, elementwise: number): string =>
  flops > 0 || elementwise > 0 ? formatWork(flops, elementwise) : "";

/** `f32[8,64]{1,0}` without its layout. */
export const shapeOf = (shape: string): string => shape.replaceAll(/\{[^}]*\}/g, "").replace(/^\(.*\)$/, "tuple");
