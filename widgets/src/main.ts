// The bundle's face: draws a view, or several as tabs, for a model.

import { explorer } from "./explorer";
import { h } from "./lib/dom";
import { createContext, KernelError, type Model, Requests, type Shared } from "./lib/model";
import { createShell } from "./lib/shell";
import type { RenderView } from "./lib/view";
import { VIEWS } from "./views";

const HEIGHT = 660;
type LoadChunk = (name: string) => Promise<unknown>;

interface Options {
  model: Model;
  el: HTMLElement;
  /** A name of `VIEWS`, or "explorer". */
  view: string;
  loadChunk: LoadChunk;
}

function problemOf(model: Model) {
  return model.get("problem") as { message?: string; traceback?: string } | undefined;
}

/** Draws and returns what takes it away again. */
export function render({ model, el, view, loadChunk }: Options): () => void {
  const end = new AbortController();
  const { signal } = end;
  const settings = () => (model.get("settings") ?? {}) as Record<string, unknown>;
  const shell = createShell({
    label: String(model.get("label") || "Workbench view"),
    height: Number(settings().height ?? HEIGHT),
    onHeight(height) {
      model.set("settings", { ...settings(), height });
      model.save_changes();
    },
    signal,
  });
  el.classList.add("wb-host");
  el.append(shell.root);
  const shared: Shared = {
    model,
    signal,
    say: shell.say,
    fail: shell.fail,
    open: () => {},
    chunk: <T>(name: string) => loadChunk(name) as Promise<T>,
  };
  const requests = new Requests(model, shell.say, signal);
  const showProblem = () => {
    const problem = problemOf(model);
    if (problem?.message) shell.fail(new KernelError(problem.message, problem.traceback));
    else shell.clear();
  };
  const relabel = () => shell.root.setAttribute("aria-label", String(model.get("label")));
  for (const [event, callback] of [
    ["change:problem", showProblem],
    ["change:label", relabel],
  ] as const) {
    model.on(event, callback);
    signal.addEventListener("abort", () => model.off(event, callback));
  }
  if (problemOf(model)?.message) showProblem();
  try {
    if (view === "explorer") explorer(shell, shared, requests);
    else draw(VIEWS[view], shell.body, shared, requests);
  } catch (error) {
    shell.fail(error);
  }
  model.send({ kind: "view", open: true });
  return () => {
    end.abort();
    model.send({ kind: "view", open: false });
  };
}

function draw(view: RenderView, body: HTMLElement, shared: Shared, requests: Requests): void {
  const host = h("div", { class: "wb-pane" });
  body.append(host);
  view(host, createContext(host, "", shared, requests));
}
