// Stands in for the notebook: every widget of an exported page gets a model that holds its state and has no kernel.
import { binary, offlineModel } from "./lib/offline-model";

const read = (id: string) => JSON.parse(document.getElementById(id)?.textContent ?? "{}");

(globalThis as { __workbenchChunks?: unknown }).__workbenchChunks = read("wb-chunks");
const place = document.querySelector("main");
for (const { esm, state } of read("wb-state")) {
  const address = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { default: front } = await import(address);
  URL.revokeObjectURL(address);
  const el = document.createElement("div");
  place?.append(el);
  front.render({ model: offlineModel(binary(state) as Record<string, unknown>), el });
}
