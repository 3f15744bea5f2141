// The player: a round of the program in front of the reader, from its real values; and its collectives, step by step.

import { type Block, showDetails } from "../lib/details";
import { button, h, keepKeys, menu, replace } from "../lib/dom";
import { asSentence, formatBytes, formatCount } from "../lib/format";
import { consume } from "../lib/keyboard";
import { save } from "../lib/save";
import { split } from "../lib/split";
import { placeIn, stageButton, takeSteps } from "../lib/stage";
import type { PlayedCollective, PlayedRound } from "../lib/states";
import { wantsStill } from "../lib/theme";
import type { RenderView, ViewContext } from "../lib/view";
import { ALGORITHM_WORDS, ALGORITHMS, type Algorithm, mostSent, type Steps, stepsOf } from "./collectives";
import { type Frame, frameAt, framesOf, mainCourse, movesOf } from "./frames";
import { encodeGif } from "./gif";
import { CollectivePainter } from "./paint-collective";
import { type Ink, RoundPainter, type Stage } from "./paint-round";

const SECONDS = 1.4; // of one frame at normal speed
const SPEEDS = [
  [0.5, "½ ×"],
  [1, "1 ×"],
  [2, "2 ×"],
  [4, "4 ×"],
] as const;
const MOST_TABLE = 64;
const GIF: Stage = { width: 760, height: 470 };
const INK = ["bg", "panel", "fg", "muted", "line", "server", "broadcast", "clients", "reduce", "accent"] as const;

/** What is played: frames with a sentence each, a picture for every moment, and what stands beside it. */
interface Piece {
  title: string;
  count: number;
  sentence(index: number): string;
  painter(pen: CanvasRenderingContext2D, ink: Ink, size: Stage): (moment: number) => void;
  details(index: number, pane: HTMLElement): void;
  /** Names of parts, with the frame where each begins. */
  chapters: readonly (readonly [string, number])[];
  click?: (x: number, y: number, size: Stage) => void;
}

class RoundPiece implements Piece {
  readonly title = "The round";
  readonly chapters: [string, number][];
  private readonly frames: readonly Frame[];
  private drawn: RoundPainter | undefined;

  constructor(
    private readonly context: ViewContext<"player">,
    private readonly played: PlayedRound,
  ) {
    this.frames = framesOf(played);
    this.chapters = [];
    this.frames.forEach(({ stage, kind }, i) => {
      const known = this.frames[i - 1];
      if (known?.stage !== stage) this.chapters.push([chapterOf(kind, played.stages[stage].name), i]);
    });
  }

  get count(): number {
    return this.frames.length;
  }

  sentence(index: number): string {
    return this.frames[index].sentence;
  }

  painter(pen: CanvasRenderingContext2D, ink: Ink, size: Stage): (moment: number) => void {
    const painter = new RoundPainter(pen, this.played, this.frames, ink, size);
    this.drawn = painter;
    return (moment) => painter.paint(moment, this.context.selection.client);
  }

  click(x: number, y: number): void {
    const client = this.drawn?.clientAt(x, y) ?? -1;
    this.context.select({ client: client < 0 ? null : client });
  }

  details(index: number, pane: HTMLElement): void {
    const frame = this.frames[index];
    const stage = this.played.stages[frame.stage];
    const rows: [string, string][] = [["stage", `${stage.path}: ${stage.name}`]];
    if (stage.clients > 1) rows.push(["clients", formatCount(stage.clients)]);
    if (stage.moved_bytes) rows.push(["sent in all", formatBytes(stage.moved_bytes)]);
    if (stage.line) rows.push(["source", stage.line]);
    const values = stage.values.map(({ name, dtype, shape, size_bytes, norms }) => {
      const size =
        norms.length > 1
          ? `${formatCount(Math.min(...norms))} to ${formatCount(Math.max(...norms))}`
          : formatCount(norms[0]);
      return [name, `${dtype}[${shape.join(", ")}]`, formatBytes(size_bytes), size];
    });
    const blocks: Block[] = [{ form: "facts", title: "", rows }];
    if (values.length)
      blocks.push({ form: "table", title: "Values", columns: ["name", "type", "bytes", "size (norm)"], rows: values });
    blocks.push(...this.perClient(frame));
    showDetails(this.context, pane, { title: stage.name, kind: stage.kind, subtitle: frame.sentence, blocks });
  }

  private perClient(frame: Frame): Block[] {
    const stage = this.played.stages[frame.stage];
    if (stage.kind !== "clients") return [];
    const course = mainCourse(this.played.courses);
    const { moves, from } = movesOf(stage.values[0]);
    const shows = course && frame.steps > 1 ? course : undefined;
    const { client } = this.context.selection;
    const numbers = [...Array(stage.clients).keys()];
    const first =
      client !== undefined && client < stage.clients ? [client, ...numbers.filter((each) => each !== client)] : numbers;
    const rows = first.slice(0, MOST_TABLE).map((each) => {
      const values = shows?.values[each] ?? [];
      const now = values[frame.step - 1];
      return [
        `client ${each}`,
        ...(shows ? [formatCount(values[0]), formatCount(now)] : []),
        ...(moves.length ? [formatCount(moves[each])] : []),
      ];
    });
    const columns = [
      "client",
      ...(shows ? [`${shows.name}, first step`, `step ${frame.step}`] : []),
      ...(moves.length ? [from ? "moved by" : "size (norm)"] : []),
    ];
    if (columns.length < 2) return [];
    const left = stage.clients - rows.length;
    return [
      { form: "table", title: "Clients", columns, rows, note: left > 0 ? `and ${formatCount(left)} more` : undefined },
    ];
  }
}

const chapterOf = (kind: Frame["kind"], name: string): string =>
  kind === "down" ? "send to clients" : kind === "server" ? "server" : name;

class CollectivePiece implements Piece {
  readonly title: string;
  readonly chapters = []; // its steps are on the slider
  private readonly steps: Steps;

  constructor(
    private readonly context: ViewContext<"player">,
    private readonly sent: PlayedCollective,
    readonly algorithm: Algorithm,
  ) {
    this.title = sent.label;
    this.steps = stepsOf(sent.kind, algorithm, sent.devices.length, sent.payload_bytes, sent.pairs);
  }

  get count(): number {
    return this.steps.length;
  }

  sentence(index: number): string {
    const step = this.steps[index];
    const bytes = step[0]?.bytes ?? 0;
    const senders = new Set(step.map(({ from }) => from)).size;
    const what = step.some((message) => message.adds) ? "adds it to its own value" : "keeps it";
    const who = senders === 1 ? "one device sends" : `${formatCount(senders)} devices send`;
    return `Step ${index + 1} of ${this.steps.length}: ${who} ${formatBytes(bytes)} each; the receiver ${what}.`;
  }

  painter(pen: CanvasRenderingContext2D, ink: Ink, size: Stage): (moment: number) => void {
    const painter = new CollectivePainter(
      pen,
      { kind: this.sent.kind, devices: this.sent.devices, steps: this.steps },
      ink,
      size,
    );
    return (moment) => painter.paint(moment);
  }

  details(_index: number, pane: HTMLElement): void {
    const { sent } = this;
    const rows: [string, string][] = [
      ["mesh axes", sent.axes || "not a product of axes"],
      ["devices of a group", formatCount(sent.devices.length)],
      ["groups at the same time", formatCount(sent.groups)],
      ["payload", formatBytes(sent.payload_bytes)],
      ["steps", formatCount(this.steps.length)],
      ["sent", `at most ${formatBytes(mostSent(this.steps))} per device`],
    ];
    if (sent.executions !== null) rows.push(["executions", formatCount(sent.executions)]);
    if (sent.line) rows.push(["source", sent.line]);
    const text = sent.pairs.length
      ? "Kind, devices, messages and bytes come from the compiled program; nothing was timed."
      : "Kind, devices and bytes come from the compiled program. The messages are in the order of the textbook " +
        "algorithm; the compiler's own choice is not known, and nothing was timed.";
    showDetails(this.context, pane, {
      title: sent.label,
      kind: "reduce",
      subtitle: sent.pairs.length ? "messages of the compiled program" : ALGORITHM_WORDS[this.algorithm],
      blocks: [
        { form: "facts", title: "", rows },
        { form: "note", title: "Sources", text },
      ],
    });
  }
}

class Player {
  private readonly canvas = h("canvas", { class: "wb-playcanvas", role: "img" });
  private readonly stageBox = h("div", { class: "wb-playstage" }, this.canvas);
  private readonly said = h("p", { class: "wb-said wb-playsaid", role: "status", "aria-live": "polite" });
  private readonly slider = h("input", {
    type: "range",
    min: 0,
    step: 0.01,
    value: 0,
    "aria-label": "Moment of the round",
  });
  private readonly counter = h("output", { class: "wb-counter" });
  private readonly playing = button("▶ Play", () => this.toggle(), { class: "wb-play", "aria-pressed": "false" });
  private readonly chapters = h("div", { class: "wb-chapters", role: "group", "aria-label": "Parts" });
  private readonly algorithms = h("span", {});
  private readonly status = h("span", { class: "wb-note", role: "status" });
  private readonly detail: HTMLElement;
  private readonly collectives: readonly PlayedCollective[];
  private piece: Piece;
  private paintMoment: ((moment: number) => void) | undefined;
  private size: Stage = { width: 0, height: 0 };
  private moment = 0;
  private shown = -1;
  private speed = 1;
  private frame = 0;
  private last = 0;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"player">,
    played: PlayedRound | null,
  ) {
    const { node, main, detail } = split(context, "What happens in this step", 0.68);
    this.detail = detail;
    this.collectives = context.state("collectives");
    this.piece = played ? new RoundPiece(context, played) : this.collectiveOf(0);
    const notes = context.state("notes");
    const foot = notes.length ? h("p", { class: "wb-note wb-playnotes" }, notes.map(asSentence).join(" ")) : null;
    main.append(this.tools(played), this.chapters, this.stageBox, this.said, foot ?? "");
    host.append(node);
    keepKeys(host);
    this.listen(host);
    this.open(this.piece);
    if (!played) this.offerAlgorithms(0);
  }

  private collectiveOf(index: number, algorithm?: Algorithm): CollectivePiece {
    const sent = this.collectives[index];
    return new CollectivePiece(this.context, sent, algorithm ?? ALGORITHMS[sent.kind]?.[0] ?? "direct");
  }

  private tools(played: PlayedRound | null): HTMLElement {
    const pieces: [number, string][] = [
      ...(played ? [[-1, "the round"] as [number, string]] : []),
      ...this.collectives.map(({ label }, i) => [i, label] as [number, string]),
    ];
    const choose = menu("Round or collective", pieces, pieces[0][0], (at) => {
      this.stop();
      this.open(at < 0 && played ? new RoundPiece(this.context, played) : this.collectiveOf(at));
      this.offerAlgorithms(at);
    });
    const speed = menu<number>("Speed", SPEEDS, 1, (value) => {
      this.speed = value;
    });
    const step = (sign: string, label: string, act: () => void) =>
      button(sign, () => (this.stop(), act()), { "aria-label": label, "data-tip": label, class: "wb-icon" });
    return h(
      "div",
      { class: "wb-tools wb-player", role: "group", "aria-label": "Play" },
      h("label", {}, "Play ", choose),
      this.algorithms,
      h(
        "span",
        { class: "wb-row" },
        step("|‹", "First step", () => this.go(0)),
        step("‹", "Step back", () => this.step(-1)),
        this.playing,
        step("›", "Step forward", () => this.step(1)),
        step("›|", "Last step", () => this.go(this.end)),
      ),
      this.slider,
      this.counter,
      h("label", {}, "Speed ", speed),
      button("Save as GIF", () => this.saveGif(), { "data-tip": "Created in the browser; nothing is uploaded." }),
      this.context.hasKernel
        ? button("Save as page", () => this.savePage(), { "data-tip": "One HTML file that plays without a notebook." })
        : null,
      this.context.key ? null : stageButton(this.stageBox, { signal: this.context.signal, say: this.context.say }),
      this.status,
    );
  }

  private offerAlgorithms(at: number): void {
    const known = at < 0 ? [] : (ALGORITHMS[this.collectives[at].kind] ?? ["direct"]);
    const options = known.map((name) => [name, ALGORITHM_WORDS[name]] as const);
    const choose = menu<Algorithm>("Algorithm", options, known[0], (name) => this.open(this.collectiveOf(at, name)));
    replace(this.algorithms, known.length > 1 ? h("label", {}, "as a ", choose) : null);
  }

  private listen(host: HTMLElement): void {
    const { context } = this;
    this.slider.addEventListener("input", () => {
      this.stop();
      this.go(Number(this.slider.value));
    });
    this.canvas.addEventListener("click", (event) => {
      const { x, y } = placeIn(event, this.canvas);
      this.piece.click?.(x, y, this.size);
    });
    host.addEventListener("keydown", (event) => this.key(event), { signal: context.signal });
    takeSteps(host, (by) => this.present(by), context.signal);
    const watch = new ResizeObserver(() => this.fit());
    watch.observe(this.stageBox);
    context.signal.addEventListener("abort", () => {
      watch.disconnect();
      this.stop();
    });
    context.onSelection(() => {
      this.shown = -1;
      this.draw();
    });
    context.theme.onChange(() => this.fit(true));
  }

  private get end(): number {
    return this.piece.count - 0.001; // the last moment of the last frame
  }

  private open(piece: Piece): void {
    this.piece = piece;
    this.slider.max = String(this.end);
    this.moment = 0;
    this.shown = -1;
    replace(
      this.chapters,
      piece.chapters.map(([name, at]) => button(name, () => (this.stop(), this.go(at)), { "data-at": at })),
    );
    this.fit(true);
  }

  private fit(again = false): void {
    const size = { width: this.stageBox.clientWidth, height: this.stageBox.clientHeight };
    if (!size.width || !size.height || (!again && size.width === this.size.width && size.height === this.size.height))
      return;
    this.size = size;
    const larger = this.stageBox.getBoundingClientRect().width / this.stageBox.offsetWidth || 1; // on a stage
    const ratio = (window.devicePixelRatio || 1) * larger;
    this.canvas.width = Math.round(size.width * ratio);
    this.canvas.height = Math.round(size.height * ratio);
    const pen = this.canvas.getContext("2d");
    if (!pen) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paintMoment = this.piece.painter(pen, this.ink(), size);
    this.draw();
  }

  private ink(): Ink {
    return Object.fromEntries(INK.map((name) => [name, this.context.theme.colour(name)])) as unknown as Ink;
  }

  private draw(): void {
    const { index } = frameAt(this.moment, this.piece.count);
    this.paintMoment?.(this.moment);
    this.slider.value = String(this.moment);
    if (index === this.shown) return;
    this.shown = index;
    const sentence = this.piece.sentence(index);
    this.said.setAttribute("aria-live", this.frame ? "off" : "polite"); // nobody could listen to a sentence a second
    this.said.textContent = sentence;
    this.canvas.setAttribute("aria-label", sentence);
    this.slider.setAttribute("aria-valuetext", `step ${index + 1} of ${this.piece.count}`);
    this.counter.textContent = `step ${index + 1} of ${this.piece.count}`;
    const chapter = this.piece.chapters.findLastIndex(([, at]) => at <= index);
    [...this.chapters.children].forEach((each, i) => each.setAttribute("aria-pressed", String(i === chapter)));
    this.piece.details(index, this.detail);
  }

  private go(moment: number): void {
    this.moment = Math.min(Math.max(moment, 0), this.end);
    this.draw();
  }

  /** To the end of this frame, then to the end of the next. */
  private step(by: number): void {
    const { index } = frameAt(this.moment, this.piece.count);
    const next = by > 0 && this.moment < index + 0.99 ? index : index + by;
    this.go(next < 0 ? 0 : next + 0.999);
  }

  /** A presenter's step; whether there was one. */
  private present(by: 1 | -1): boolean {
    const { index } = frameAt(this.moment, this.piece.count);
    if (by > 0 ? this.moment >= this.end - 0.01 : index === 0) return false;
    this.stop();
    this.step(by);
    return true;
  }

  // Playing

  private toggle(): void {
    if (this.frame) this.stop();
    else this.play();
  }

  private play(): void {
    if (this.moment >= this.end) this.go(0);
    this.playing.textContent = "❚❚ Pause";
    this.playing.setAttribute("aria-pressed", "true");
    this.last = performance.now();
    const still = wantsStill();
    const next = (now: number) => {
      const passed = ((now - this.last) / 1000 / SECONDS) * this.speed;
      if (!still || passed >= 1) {
        this.last = now;
        this.go(still ? Math.floor(this.moment) + 1.999 : this.moment + passed);
      }
      if (this.moment >= this.end) return this.stop();
      this.frame = requestAnimationFrame(next);
    };
    this.frame = requestAnimationFrame(next);
  }

  private stop(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.playing.textContent = "▶ Play";
    this.playing.setAttribute("aria-pressed", "false");
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as Element;
    if (target.closest("select, .wb-handle, aside") || (target.closest("input") && event.key !== " ")) return;
    const acts: Record<string, () => void> = {
      ArrowRight: () => this.step(1),
      ArrowLeft: () => this.step(-1),
      Home: () => this.go(0),
      End: () => this.go(this.end),
    };
    if (event.key === " " && !target.closest("button")) this.toggle();
    else if (acts[event.key]) {
      this.stop();
      acts[event.key]();
    } else return;
    consume(event);
  }

  // Saving

  private async saveGif(): Promise<void> {
    this.stop();
    const canvas = h("canvas", { width: GIF.width, height: GIF.height });
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    if (!pen) return;
    const draw = this.piece.painter(pen, this.ink(), GIF);
    const smooth = wantsStill() ? 1 : 6;
    const bytes = await encodeGif(pen, draw, this.piece.count, smooth, SECONDS / this.speed, (share) => {
      this.status.textContent = `Creating the GIF: ${Math.round(100 * share)} %`;
    });
    this.status.textContent = `Saved, ${formatBytes(bytes.length)}`;
    save([bytes], "image/gif", `${this.context.state("title")}.gif`);
    this.fit(true);
  }

  private async savePage(): Promise<void> {
    const page = await this.context.request("player_page").catch(() => null); // the error is shown already
    if (page) save([page], "text/html", `${this.context.state("title")}.html`);
  }
}

/** The program is not evaluated before the reader asks for it: that may take a while. */
function offer(host: HTMLElement, context: ViewContext<"player">): void {
  const ask = button("Play the round with my values", () => evaluate(), { class: "wb-primary" });
  const said = h(
    "p",
    { class: "wb-note", role: "status" },
    "Evaluates the program once, in the kernel; every client is computed.",
  );
  const bar = h("div", { class: "wb-playoffer" }, ask, said);
  const evaluate = async () => {
    ask.disabled = true;
    const onProgress = ({ phase, seconds }: { phase: string; seconds?: number }) => {
      said.textContent = `${phase}, ${(seconds ?? 0).toFixed(0)} s`;
    };
    // A failure is shown already.
    const made = await context.request("play_round", {}, { onProgress, signal: context.signal }).catch(() => null);
    ask.disabled = false;
    if (!made) return;
    replace(host);
    new Player(host, context, made.played);
  };
  host.append(bar);
}

export const player: RenderView<"player"> = (host, context) => {
  if (context.state("can_play") && context.hasKernel) {
    const rest = h("div", { class: "wb-pane" });
    offer(host, context);
    host.append(rest);
    if (context.state("collectives").length) new Player(rest, context, null);
    return;
  }
  const nothing = !context.state("played") && !context.state("collectives").length;
  if (nothing)
    host.append(h("p", { class: "wb-note wb-empty" }, "No round was recorded, and the program has no collectives."));
  else new Player(host, context, context.state("played"));
};
