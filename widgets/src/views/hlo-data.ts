// A compiled module as columns: what instructions are called, what they cost, which line they are from.
import type { HloCollective, HloState } from "../lib/states";
import type { Reader } from "../lib/view";

export type SourceFile = HloState["code"][number];

export interface LineCost {
  instructions: number;
  flops: number;
  elementwise: number;
  traffic: number;
  sent: number;
}

export class Module {
  readonly count: number;
  readonly names: readonly string[];
  readonly shapes: readonly string[];
  readonly operands: readonly string[];
  readonly opNames: readonly string[];
  readonly opcodes: readonly string[];
  readonly stages: readonly string[];
  readonly computations: readonly string[];
  readonly collectives: readonly HloCollective[];
  readonly opcode: Float32Array;
  readonly stage: Float32Array;
  readonly computation: Float32Array;
  readonly source: Float32Array;
  readonly size: Float32Array;
  readonly flops: Float32Array;
  readonly elementwise: Float32Array;
  readonly traffic: Float32Array;
  readonly times: Float32Array;
  readonly collective: Float32Array;
  private readonly sources: HloState["sources"];
  private readonly number: Map<string, number>;
  private haystack: string[] | undefined;
  private listing: readonly string[] | undefined;
  private defined: Map<string, number> | undefined;

  constructor(readonly reader: Reader<"hlo">) {
    const context = reader;
    const lines = (name: "names" | "shapes" | "operands") => context.state(name).split("\n");
    this.count = context.state("count");
    this.names = lines("names");
    this.shapes = lines("shapes");
    this.operands = lines("operands");
    this.opNames = context.state("op_names");
    this.opcodes = context.state("opcodes");
    this.stages = context.state("stages");
    this.computations = context.state("computations");
    this.collectives = context.state("collectives");
    this.sources = context.state("sources");
    this.opcode = context.array("hlo.opcode");
    this.stage = context.array("hlo.stage");
    this.computation = context.array("hlo.computation");
    this.source = context.array("hlo.source");
    this.size = context.array("hlo.size");
    this.flops = context.array("hlo.flops");
    this.elementwise = context.array("hlo.elementwise");
    this.traffic = context.array("hlo.accessed");
    this.times = context.array("hlo.executions");
    this.collective = context.array("hlo.collective");
    this.number = new Map(this.names.map((name, i) => [name, i]));
  }

  find(name: string | undefined): number {
    return name === undefined ? -1 : (this.number.get(name) ?? -1);
  }

  /** How often an instruction runs in one call; once where that is not known. */
  runs(i: number): number {
    return Number.isFinite(this.times[i]) ? this.times[i] : 1;
  }

  keyAt(source: number): string {
    return source < 0 ? "" : `${this.sources[source][0]}:${this.sources[source][1]}`;
  }

  lineOf(i: number): string {
    return this.keyAt(this.source[i]);
  }

  placeOf(i: number): string {
    return this.source[i] < 0 ? "" : this.sources[this.source[i]][2];
  }

  placeOfKey(key: string): string {
    return this.sources.find(([file, line]) => `${file}:${line}` === key)?.[2] ?? key;
  }

  jointOf(i: number): HloCollective | null {
    return this.collective[i] >= 0 ? this.collectives[this.collective[i]] : null;
  }

  sentBy(i: number): number {
    return this.jointOf(i)?.sent ?? 0;
  }

  /** The line of the compiled listing that defines an instruction, from 1 on; 0 where the listing lacks it. */
  lineDefining(name: string): number {
    this.listing ??= this.reader.state("compiled").split("\n");
    this.defined ??= new Map(
      this.listing.flatMap((text, i): [string, number][] => {
        const defined = definedName(text);
        return defined === null ? [] : [[defined, i + 1]];
      }),
    );
    return this.defined.get(name) ?? 0;
  }

  /** An instruction as the compiler wrote it. */
  textOf(i: number): string | undefined {
    const line = this.lineDefining(this.names[i]);
    return line ? this.listing?.[line - 1].trim() : undefined;
  }

  ofLine(key: string): number[] {
    const found: number[] = [];
    for (let i = 0; i < this.count; i++) if (this.source[i] >= 0 && this.lineOf(i) === key) found.push(i);
    return found;
  }

  /** The line of the listing with the instruction of a source line that computes or moves the most; 0 where none. */
  largestOf(key: string): number {
    const work = (i: number) => (this.flops[i] + this.elementwise[i] + this.traffic[i]) * this.runs(i) || 0;
    const [most] = this.ofLine(key).sort((a, b) => work(b) - work(a));
    return most === undefined ? 0 : this.lineDefining(this.names[most]);
  }

  /** Every line with what it costs in one call. */
  costOfLines(): Map<string, LineCost> {
    const costs = new Map<string, LineCost>();
    for (let i = 0; i < this.count; i++) {
      if (this.source[i] < 0) continue;
      const key = this.lineOf(i);
      const cost = costs.get(key) ?? { instructions: 0, flops: 0, elementwise: 0, traffic: 0, sent: 0 };
      cost.instructions += 1;
      cost.flops += this.flops[i] * this.runs(i) || 0;
      cost.elementwise += this.elementwise[i] * this.runs(i) || 0;
      cost.traffic += this.traffic[i] * this.runs(i) || 0;
      cost.sent += this.sentBy(i);
      costs.set(key, cost);
    }
    return costs;
  }

  /** Whether name, opcode, shape or op_name hold all words, which are in lower case. */
  matches(i: number, words: readonly string[]): boolean {
    this.haystack ??= this.names.map((name, k) =>
      `${name} ${this.opcodes[this.opcode[k]]} ${this.shapes[k]} ${this.opNames[k] ?? ""} ${this.placeOf(k)}`.toLowerCase(),
    );
    const text = this.haystack[i];
    return words.every((word) => text.includes(word));
  }
}

const TRIVIAL = new Set([
  "parameter",
  "constant",
  "tuple",
  "get-tuple-element",
  "bitcast",
  "iota",
  "after-all",
  "partition-id",
]);
/** Instructions that only name, hold or pass on a value. */
export const isTrivial = (opcode: string): boolean => TRIVIAL.has(opcode);

/** The name that a line of HLO text defines; null for other lines. */
export const definedName = (line: string): string | null => /^\s*(?:ROOT )?%?([\w.-]+) = /.exec(line)?.[1] ?? null;
