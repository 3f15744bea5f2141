// What is known of single clients: columns of numbers, where each one lives, and what makes one late.
import type { Details } from "../lib/details";
import { formatAs, formatCount, plural } from "../lib/format";
import { correlation, mean } from "../lib/scale";
import type { ClientColumn, ClientsState, FactsBlock, NoteBlock, TableBlock } from "../lib/states";

/** "2.29 ×", and "317 ×" of large ones. */
export const timesText = (ratio: number): string => `${ratio.toFixed(ratio < 10 ? 2 : 0)} ×`;

/** First client, last + 1, ids and names of the devices that hold them. */
export type DeviceRange = ClientsState["ranges"][number];
export type Values = readonly ArrayLike<number>[];

const FAST_ENOUGH = 1.05;
const CLEAR = 0.5; // correlation from which a column is named as what goes with time

const single = (noun: string) => noun.replace(/s$/, "");

/** What to call a client: by its group where clients are nested. */
export function clientName(clients: Pick<ClientsState, "groups" | "group_size">, client: number): string {
  const many = clients.group_size;
  if (many > 1) return `clients ${formatCount(client * many)} to ${formatCount((client + 1) * many - 1)}`;
  if (!clients.groups) return `client ${client}`;
  const { outer, inner, size } = clients.groups;
  return `${single(outer)} ${Math.floor(client / size)}, ${single(inner)} ${client % size}`;
}

/** The column that says how long clients take: measured if there is one, else simulated, else estimated; -1: none. */
export function timeColumn(columns: readonly ClientColumn[]): number {
  const rank = ({ kind }: ClientColumn) => ["measured", "simulated"].indexOf(kind) + 1 || 3;
  const known = columns.map((_, i) => i).filter((i) => columns[i].unit === "seconds");
  return known.sort((a, b) => rank(columns[a]) - rank(columns[b]) || a - b)[0] ?? -1;
}

interface Companion {
  label: string;
  ratio: number;
  correlation: number;
}

/** The columns that could explain a time: work, not other times. */
function companions(columns: readonly ClientColumn[], values: Values, times: number, client: number): Companion[] {
  return columns
    .map((column, i) => ({
      column,
      label: column.label,
      ratio: values[i][client] / mean(values[i]),
      correlation: correlation(values[times], values[i]),
    }))
    .filter(({ column }) => column.unit !== "seconds" && column.unit !== "times");
}

/** Where the time is the sum of other columns of its kind (down, compute, up): the part that most of the delay is in. */
export function latePart(columns: readonly ClientColumn[], values: Values, times: number, client: number): string {
  const own = values[times][client];
  const over = own - mean(values[times]);
  const parts = columns
    .map((column, i) => ({ column, i, value: values[i][client], over: values[i][client] - mean(values[i]) }))
    .filter(({ column, i, value }) => {
      const isTime = column.unit === "seconds" && column.kind === columns[times].kind;
      return i !== times && isTime && Number.isFinite(value); // a phase that took no time has no value
    });
  const sum = parts.reduce((total, { value }) => total + value, 0);
  if (!(Math.abs(sum - own) < 0.01 * own)) return "";
  const largest = parts.reduce((one, other) => (other.over > one.over ? other : one));
  const ratio = largest.value / (largest.value - largest.over);
  const share = `${Math.round((100 * largest.over) / over)} %`;
  const value = `${formatAs("seconds", largest.value)}, ${timesText(ratio)} the mean`;
  return `${share} of its excess over the mean is ${largest.column.label}: ${value}.`;
}

/** Whether a client is late, and whether anything that was counted goes with time over all clients. */
export function explainTime(columns: readonly ClientColumn[], values: Values, client: number): string | null {
  const times = timeColumn(columns);
  if (times < 0 || !Number.isFinite(values[times][client])) return null;
  const own = values[times][client];
  const known = Array.from(values[times]).filter(Number.isFinite);
  const slower = known.filter((value) => value > own).length;
  const ratio = own / mean(known);
  const { kind } = columns[times];
  const place =
    slower === 0
      ? `The slowest of ${formatCount(known.length)}`
      : `${plural(slower, "client")} of ${formatCount(known.length)} ${slower === 1 ? "is" : "are"} slower`;
  const first = `${place}: ${timesText(ratio)} the mean time (${kind || "predicted"}).`;
  if (ratio <= FAST_ENOUGH) return first;
  const part = latePart(columns, values, times, client);
  if (part) return `${first} ${part}`;
  const all = companions(columns, values, times, client);
  const clear = all.filter((each) => each.correlation >= CLEAR && each.ratio > FAST_ENOUGH);
  if (clear.length) {
    const words = clear.map(
      (each) =>
        `${each.label} (${each.ratio.toFixed(2)} × the mean, correlation with time ${each.correlation.toFixed(2)})`,
    );
    return `${first} This client has more of the quantities that correlate with time over all clients: ${words.join(", ")}.`;
  }
  const strongest = all
    .filter((each) => Number.isFinite(each.correlation))
    .sort((a, b) => b.correlation - a.correlation)[0];
  const once =
    kind === "measured"
      ? " A single measurement contains scheduling noise: measure several rounds before acting on it."
      : "";
  if (!strongest) return `${first} No pattern: all clients have the same counted work.${once}`;
  const most = `highest: ${strongest.label}, correlation ${strongest.correlation.toFixed(2)}`;
  return `${first} No pattern: no counted quantity correlates with time over all clients (${most}).${once}`;
}

export const rangeOf = (clients: ClientsState, client: number): DeviceRange | undefined =>
  clients.ranges.find(([start, stop]) => client >= start && client < stop);

/** The detail pane of one client. */
export function clientDetails(clients: ClientsState, values: Values, client: number): Details {
  const held = rangeOf(clients, client);
  const devices = held && held[2].length > 1 ? "devices" : "device";
  const rows: [string, string][] = [["client", `${formatCount(client)} of 0 to ${formatCount(clients.count - 1)}`]];
  if (held) rows.push([devices, held[3].join(", ")]);
  clients.columns.forEach((column, i) => {
    const value = values[i]?.[client];
    if (Number.isFinite(value) && value !== 0)
      rows.push([column.label, `${formatAs(column.unit, value)}${column.kind ? ` (${column.kind})` : ""}`]);
  });
  const blocks: (FactsBlock | TableBlock | NoteBlock)[] = [{ form: "facts", title: "", rows }];
  const late = explainTime(clients.columns, values, client);
  if (late) blocks.push({ form: "note", title: "straggler", text: late });
  if (clients.shares.length)
    blocks.push({
      form: "table",
      title: "Share of the data",
      columns: ["name", "type", "bytes"],
      rows: clients.shares,
    });
  if (clients.neighbours && held) {
    const text = `${clientName(clients, held[0])} to ${clientName(clients, held[1] - 1)} on the same ${devices}`;
    blocks.push({ form: "note", title: "Same devices", text });
  }
  const name = clientName(clients, client);
  return { title: name[0].toUpperCase() + name.slice(1), kind: "clients", subtitle: clients.placement, blocks };
}
