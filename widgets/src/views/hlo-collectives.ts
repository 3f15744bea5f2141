// Collectives, largest first: by kind, mesh axes and the lines that ask for them; inside, the single instructions.

import { badge, onReport } from "../lib/badges";
import { h } from "../lib/dom";
import { formatBytes, formatCount, plural } from "../lib/format";
import type { HloCollectiveGroup } from "../lib/states";
import { type Column, type TreeTable, treeTable } from "../lib/tree-table";
import type { ViewContext } from "../lib/view";
import type { Module } from "./hlo-data";

export interface CollectivesTable {
  node: HTMLElement;
  table: TreeTable | null;
  /** Marks the row of an instruction, or of a line. */
  select(instruction: string | undefined, line: string | undefined): void;
}

export function collectivesTable(
  context: ViewContext<"hlo">,
  module: Module,
  choose: (instruction: string, line: string | null) => void,
): CollectivesTable {
  const groups = context.state("groups");
  if (!groups.length) {
    const text = module.count ? "No collectives: the devices do not communicate." : context.state("missing");
    return {
      node: h("div", { class: "wb-scrolls" }, h("p", { class: "wb-note" }, text)),
      table: null,
      select: () => {},
    };
  }
  const parent = groups.map(() => -1);
  const single: number[] = [];
  groups.forEach((group, g) => {
    if (group.members.length < 2) return;
    for (const member of group.members) {
      parent.push(g);
      single.push(member);
    }
  });
  const isGroup = (node: number) => node < groups.length;
  const member = (node: number) => module.collectives[single[node - groups.length]];
  const figure = (node: number) => (isGroup(node) ? groups[node] : member(node));
  const first = (node: number) => (isGroup(node) ? module.collectives[groups[node].members[0]] : member(node));
  const groupOf = (node: number) => groups[isGroup(node) ? node : parent[node]];
  const most = (value: (group: HloCollectiveGroup) => number) => Math.max(...groups.map(value), 1);
  /** A member has its own number of lines: only some collectives of a group are combined. */
  const placesOf = (node: number) => {
    const [group, { lines }] = [groupOf(node), first(node)];
    if (isGroup(node) || lines.length === group.lines.length) return group.places;
    return group.places.replace(/ \+\d+$/, "") + (lines.length > 1 ? ` +${lines.length - 1}` : "");
  };
  const code = (node: number) => {
    const { lines } = groupOf(node);
    return [
      h("span", { class: "wb-tt-text" }, placesOf(node)),
      lines[0]?.[2] ? h("code", { class: "wb-codebit" }, lines[0][2]) : null,
    ];
  };
  const stages: Column = {
    key: "stage",
    title: "stage",
    text: (node) => figure(node).stages.join(", "),
    width: "80px",
    lesser: true,
  };
  const columns: Column[] = [
    {
      key: "sent",
      title: "sent",
      unit: "bytes",
      tip: "Bytes that one device sends in one call.",
      value: (node) => figure(node).sent,
      full: most(({ sent }) => sent),
      width: "98px",
    },
    { key: "source", title: "source", text: placesOf, cell: code, width: "minmax(190px, 2.4fr)" },
    { key: "axes", title: "mesh axis", text: (node) => groupOf(node).axes, width: "110px", lesser: true },
    {
      key: "payload",
      title: "payload",
      unit: "bytes",
      tip: "Operand of one device in one execution; if there are several collectives, the largest operand.",
      value: (node) => figure(node).payload,
      full: most((group) => group.payload),
      width: "98px",
      lesser: true,
    },
    {
      key: "times",
      title: "executions",
      tip: "Executions in one call.",
      value: (node) => figure(node).times,
      width: "70px",
      lesser: true,
    },
    ...(module.stages.filter(Boolean).length > 1 ? [stages] : []),
  ];
  const name = (node: number) => {
    const { kind, members } = groupOf(node);
    if (isGroup(node) && members.length > 1) return `${formatCount(members.length)} × ${kind}`;
    const { name } = first(node); // XLA names some by what they came from: psum.7
    return name.startsWith(kind) ? name : `${kind} ${name}`;
  };
  // A folded row stands for all of its collectives.
  const names = (node: number) =>
    isGroup(node) ? groupOf(node).members.map((each) => module.collectives[each].name) : [first(node).name];
  const table = treeTable({
    label: "Collectives, largest first",
    parent,
    title: "collective",
    nameWidth: 190,
    name,
    mark: (node) => badge(context, "instructions", ...names(node)),
    columns,
    sort: { key: "sent", descending: true },
    rowAttributes: (node) => ({ "data-collective": first(node).name }),
    choose: (node) => choose(first(node).name, groupOf(node).lines[0]?.[0] ?? null),
    signal: context.signal,
  });
  onReport(context, () => table.draw());
  const total = groups.reduce((sum, { sent }) => sum + sent, 0);
  const counts = `${plural(module.collectives.length, "collective")} from ${plural(groups.length, "place")}`;
  const sentence = `${counts}: one device sends ${formatBytes(total)} in one call.`;
  return {
    node: h("div", { class: "wb-pane" }, h("p", { class: "wb-note wb-tools" }, sentence), table.node),
    table,
    select(instruction, line) {
      const at = single.findIndex((each) => module.collectives[each].name === instruction);
      const alone = groups.findIndex(
        ({ members }) => members.length === 1 && module.collectives[members[0]].name === instruction,
      );
      const ofLine = instruction ? -1 : groups.findIndex(({ lines }) => lines.some(([key]) => key === line));
      const found = at >= 0 ? groups.length + at : alone >= 0 ? alone : ofLine;
      table.select(found >= 0 ? found : null);
    },
  };
}
