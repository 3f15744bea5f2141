// Stands in for the notebook: every widget of an exported page gets a model that holds its state and has no kernel.
import { binary, offlineModel, unpack } from "./lib/offline-model";

const read = async (id: string) => JSON.parse(await unpack(document.getElementById(id)?.textContent ?? ""));

const [chunks, pages] = await Promise.all([read("wb-chunks"), read("wb-state")]);
(globalThis as { __workbenchChunks?: unknown }).__workbenchChunks = chunks;
const place = document.querySelector("main");
const LEAST = 480;
const MOST = 1000;

/** One view alone on its page is as high as the window leaves it. */
function heightOf(el: HTMLElement): { height?: number } {
  if (pages.length > 1) return {};
  const below = 20; // the page's margin
  return { height: Math.min(Math.max(innerHeight - el.getBoundingClientRect().top - below, LEAST), MOST) };
}

for (const { esm, state } of pages) {
  const address = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { default: front } = await import(address);
  URL.revokeObjectURL(address);
  const el = document.createElement("div");
  place?.append(el);
  const held = binary(state) as Record<string, unknown>;
  held.settings = { ...heightOf(el), ...(held.settings as object) };
  front.render({ model: offlineModel(held), el });
}
