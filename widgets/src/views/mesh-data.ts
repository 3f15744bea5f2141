// Devices of a mesh: places, groups along an axis, who holds what.
import type { DeviceFigure, MeshAxis, MeshLayout, MeshState } from "../lib/states";
import type { Reader } from "../lib/view";

const span = (start: number, stop: number) => (stop - start === 1 ? String(start) : `${start}–${stop - 1}`);

/** What a device holds, in words; nothing where no placement has members. */
export function heldWords(held: MeshState["held"][string]): string {
  return held.map(([name, start, stop]) => (stop === start ? `no ${name}` : `${name} ${span(start, stop)}`)).join(", ");
}

export class Mesh {
  readonly ids: readonly number[];
  readonly axes: readonly MeshAxis[];
  readonly choices: readonly DeviceFigure[];
  readonly layouts: readonly MeshLayout[];
  private readonly positions: Float32Array[];
  private readonly held: MeshState["held"];
  private readonly names: { all?: string; each?: string[] };

  constructor(private readonly context: Reader<"mesh">) {
    this.ids = Array.from(context.array("mesh.id"));
    this.axes = context.state("axes");
    this.choices = context.state("choices");
    this.layouts = context.state("layouts");
    this.held = context.state("held");
    this.names = context.state("names");
    this.positions = this.axes.map((_, axis) => context.array(`mesh.axis${axis}`));
  }

  values(choice: DeviceFigure): Float32Array {
    return this.context.array(`mesh.${choice.key}`);
  }

  nameOf(index: number): string {
    return `${this.names.all ?? this.names.each?.[index] ?? "device"}:${this.ids[index]}`;
  }

  heldBy(index: number): MeshState["held"][string] {
    return this.held[String(this.ids[index])] ?? [];
  }

  position(index: number, axis: number): number {
    return this.positions[axis][index];
  }

  spoken(index: number): string {
    const place = this.axes.map((axis, i) => `${axis.name} ${this.position(index, i)}`).join(", ");
    return [this.nameOf(index), place, heldWords(this.heldBy(index))].filter(Boolean).join(": ");
  }

  /** The devices that differ from one along one mesh axis alone: those that it talks to over that axis. */
  groupOf(index: number, name: string | undefined): Set<number> {
    const axis = this.axes.findIndex((each) => each.name === name);
    const found = new Set<number>();
    if (axis < 0 || index < 0) return found;
    for (let i = 0; i < this.ids.length; i++)
      if (this.positions.every((column, k) => k === axis || column[i] === column[index])) found.add(i);
    return found;
  }

  /** Which group along an axis every device is in, numbered from 0. */
  groupsAlong(name: string): Float32Array {
    const axis = this.axes.findIndex((each) => each.name === name);
    const known = new Map<string, number>();
    return Float32Array.from(this.ids, (_, i) => {
      const key = this.positions
        .filter((_column, k) => k !== axis)
        .map((column) => column[i])
        .join(",");
      if (!known.has(key)) known.set(key, known.size);
      return known.get(key) ?? 0;
    });
  }

  holding(client: number | undefined): Set<number> {
    const found = new Set<number>();
    if (client === undefined) return found;
    this.ids.forEach((_, i) => {
      if (this.heldBy(i).some(([, start, stop]) => client >= start && client < stop)) found.add(i);
    });
    return found;
  }

  /** The slice of every array that a device holds: name, slice, bytes. */
  shardsOf(index: number): [string, string, number][] {
    const leaves = this.context.state("leaves");
    return leaves.flatMap(({ name, shape, shard_shape, bytes }, i): [string, string, number][] => {
      const rank = shape.length || 1;
      const corner = this.context.array(`mesh.shards.${i}`).subarray(index * rank, (index + 1) * rank);
      if (corner[0] < 0) return [];
      const bounds = shape.map((size, d) =>
        shard_shape[d] === size
          ? ":"
          : `${corner[d] * shard_shape[d]}:${Math.min((corner[d] + 1) * shard_shape[d], size)}`,
      );
      return [[name, `[${bounds.join(", ")}]`, bytes]];
    });
  }
}

/** Device by cell of a layout; -1 where a gap is. */
export function gridOf(layout: MeshLayout, places: Float32Array): Int32Array {
  const grid = new Int32Array(layout.columns * layout.rows).fill(-1);
  for (let i = 0; 2 * i < places.length; i++) grid[places[2 * i + 1] * layout.columns + places[2 * i]] = i;
  return grid;
}

/** The device in the next cell in a direction, gaps jumped over; the same one at an edge. */
export function neighbour(
  layout: MeshLayout,
  places: Float32Array,
  grid: Int32Array,
  index: number,
  dx: number,
  dy: number,
): number {
  let x = places[2 * index] + dx;
  let y = places[2 * index + 1] + dy;
  while (x >= 0 && x < layout.columns && y >= 0 && y < layout.rows) {
    const found = grid[y * layout.columns + x];
    if (found >= 0) return found;
    x += dx;
    y += dy;
  }
  return index;
}

/** The device nearest to a cell, so that gaps between panels can be clicked too; -1 where nothing is near. */
export function nearest(layout: MeshLayout, grid: Int32Array, cell: number, reach = 2): number {
  if (cell < 0) return -1;
  if (grid[cell] >= 0) return grid[cell];
  const [cx, cy] = [cell % layout.columns, Math.floor(cell / layout.columns)];
  for (let r = 1; r <= reach; r++)
    for (let y = Math.max(0, cy - r); y <= Math.min(layout.rows - 1, cy + r); y++)
      for (let x = Math.max(0, cx - r); x <= Math.min(layout.columns - 1, cx + r); x++)
        if (grid[y * layout.columns + x] >= 0) return grid[y * layout.columns + x];
  return -1;
}
