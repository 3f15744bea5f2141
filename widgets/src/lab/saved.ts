// A view of a saved notebook whose kernel is gone: drawn from the state that the output holds, with this extension's code.

import type { Model } from "../lib/model";
import { binary, offlineModel, unpack } from "../lib/offline-model";

export const SAVED = "application/vnd.workbench.view+json";

export interface Saved {
  /** The widget that was shown. */
  model: string;
  title: string;
  /** Where a view that has just been made goes; in its cell by default. */
  dock?: "right";
  /** What the view shows, as gzip in base64. */
  state: string;
}
interface Unpacked {
  /** The name of a view of the bundle. */
  view: string;
  state: Record<string, unknown>;
}
interface Bundle {
  render(options: {
    model: Model;
    el: HTMLElement;
    view: string;
    loadChunk: (name: string) => Promise<unknown>;
  }): () => void;
}

/** Where JupyterLab serves this extension's files. */
function address(name: string): string {
  const config = JSON.parse(document.getElementById("jupyter-config-data")?.textContent ?? "{}");
  return `${config.fullLabextensionsUrl}/mapreduce-workbench/static/${name}`;
}

const load = (name: string): Promise<unknown> => import(address(`${name}.js`));

const SHEETS = ["theme.css", "styles.css"];
let dressed = false;

/** The views' style, from this extension's own files: a notebook that nobody trusts brings data only. */
function dress(): void {
  if (dressed) return;
  dressed = true;
  for (const name of SHEETS) {
    const link = document.createElement("link");
    Object.assign(link, { rel: "stylesheet", href: address(name) });
    document.head.append(link);
  }
}

/** Draws it; returns what takes it away again. */
export async function drawSaved(el: HTMLElement, saved: Saved): Promise<() => void> {
  const { view, state } = JSON.parse(await unpack(saved.state)) as Unpacked;
  dress();
  const model = offlineModel(binary(state) as Record<string, unknown>);
  return ((await load("workbench")) as Bundle).render({ model, el, view, loadChunk: load });
}
