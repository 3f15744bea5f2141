// A view inside of a page that was made of a notebook: unpacks its state and the front end's code, and draws.
import { binary, offlineModel, unpack } from "./lib/offline-model";

interface Packed {
  esm: string;
  state: Record<string, unknown>;
  chunks: Record<string, { code: string; css: string }>;
}

async function draw(place: HTMLElement): Promise<void> {
  const packed = place.querySelector("script")?.textContent ?? "";
  const { esm, state, chunks } = JSON.parse(await unpack(packed)) as Packed;
  const page = globalThis as { __workbenchChunks?: Packed["chunks"] };
  page.__workbenchChunks = { ...chunks, ...page.__workbenchChunks };
  const address = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { default: front } = await import(address);
  URL.revokeObjectURL(address);
  const el = document.createElement("div");
  await front.render({ model: offlineModel(binary(state) as Record<string, unknown>), el });
  place.replaceChildren(el);
}

const place = document.getElementById("%PLACE%");
if (place) draw(place).catch((error) => console.error(error)); // the picture stays
