// What of a graph of nested groups is visible, and where. The kernel ordered every group's members into columns and rows;
// here only the sizes of what is open are added up.

const LEAF = { w: 96, h: 20 }, JOINT = { w: 168, h: 36 }, CARD_HEIGHT = 46, GAP = { x: 14, y: 22 }, PAD = 12, HEAD = 26, COLUMN_GAP = 34;
export const ROOT = -1;

/** The tree: members of every group by column and row, sums over everything inside, and the chain to the root. */
export function graphTree({ parent, place, groupCount, own }) {
  const members = new Map(), inside = Array.from({ length: groupCount }, () => ({ count: 0, flops: 0, bytes: 0, joints: [] }));
  for (let node = 0; node < parent.length; node++) {
    if (parent[node] < ROOT) continue;
    if (!members.has(parent[node])) members.set(parent[node], []);
    members.get(parent[node]).push(node);
  }
  for (let node = parent.length - 1; node >= 0; node--) {
    if (node < groupCount) own(node, inside[node]);
    const above = parent[node] >= 0 ? inside[parent[node]] : null;
    if (!above) continue;
    if (node >= groupCount) own(node, above);
    else {
      const each = inside[node];
      above.count += each.count;
      above.flops += each.flops;
      above.bytes += each.bytes;
      above.joints.push(...each.joints);
    }
  }
  const grid = new Map(); // group -> columns of rows of nodes
  for (const [group, nodes] of members) {
    const columns = [];
    for (const node of nodes.sort((a, b) => place[3 * a] - place[3 * b] || place[3 * a + 1] - place[3 * b + 1] || place[3 * a + 2] - place[3 * b + 2]))
      ((columns[place[3 * node]] ??= [])[place[3 * node + 1]] ??= []).push(node);
    grid.set(group, columns.map((rows) => rows.filter(Boolean)).filter(Boolean));
  }
  const chain = (node) => { const found = []; for (let at = node; at >= 0; at = parent[at]) found.push(at); return found; };
  return { members, inside, grid, chain };
}

/** Boxes of all visible nodes for a set of open groups: `{x, y, w, h}` with x, y the upper left corner, in drawing order. */
export function arrange(tree, { open, groupCount, isJoint, cardWidth, titleWidth }) {
  const sizes = new Map();
  const size = (node) => {
    if (node >= groupCount) return isJoint(node) ? JOINT : LEAF;
    if (!open.has(node)) return { w: cardWidth(node), h: CARD_HEIGHT + (tree.inside[node].joints.length ? 15 : 0) };
    return measure(node);
  };
  function measure(group) {
    const columns = (tree.grid.get(group) ?? []).map((rows) => rows.map((row) => {
      const held = row.map(size);
      held.forEach((each, i) => sizes.set(row[i], each));
      return { nodes: row, w: held.reduce((sum, each) => sum + each.w + GAP.x, -GAP.x), h: Math.max(...held.map((each) => each.h)) };
    }));
    const widths = columns.map((rows) => Math.max(...rows.map((row) => row.w))), heights = columns.map((rows) => rows.reduce((sum, row) => sum + row.h + GAP.y, -GAP.y));
    const content = widths.reduce((sum, w) => sum + w + COLUMN_GAP, -COLUMN_GAP);
    const made = { columns, widths, content, w: Math.max(content, group === ROOT ? 0 : titleWidth(group)) + 2 * PAD, h: Math.max(0, ...heights) + HEAD + 2 * PAD };
    if (group === ROOT) sizes.set(ROOT, made);
    return made;
  }
  const boxes = new Map();
  function put(group, x, y) {
    const { columns, widths, content, w } = sizes.get(group);
    let left = x + (w - content) / 2;
    columns.forEach((rows, c) => {
      let top = y + HEAD + PAD;
      for (const row of rows) {
        let at = left + (widths[c] - row.w) / 2;
        for (const node of row.nodes) {
          const { w, h } = sizes.get(node), box = { x: at, y: top + (row.h - h) / 2, w, h };
          boxes.set(node, box);
          if (node < groupCount && open.has(node)) put(node, box.x, box.y);
          at += w + GAP.x;
        }
        top += row.h + GAP.y;
      }
      left += widths[c] + COLUMN_GAP;
    });
  }
  const whole = measure(ROOT);
  put(ROOT, 0, -HEAD);
  return { boxes, w: whole.w, h: whole.h - HEAD };
}
