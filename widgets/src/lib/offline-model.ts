// A model that holds a widget's state and has no kernel: for exported pages and for notebooks that are only read.
import type { Model } from "./model";

type State = Record<string, unknown>;
type Listener = (...values: unknown[]) => void;
export const NO_KERNEL = "This page has no kernel. Open the notebook and run its cells to compute new numbers.";

/** Base64 as bytes; a loop, since `Uint8Array.from` with a function takes ten times as long. */
function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** Values as Python wrote them, with bytes again where base64 stands for them; what is given is changed. */
export function binary(value: unknown): unknown {
  if (!value || typeof value !== "object") return value;
  const held = value as State; // an array, too, has its items by their places
  if (typeof held["wb-base64"] === "string") return new DataView(bytesOf(held["wb-base64"]).buffer);
  for (const key of Object.keys(held)) {
    const item = held[key];
    if (item && typeof item === "object") held[key] = binary(item);
  }
  return held;
}

/** Text that was compressed by Python's gzip and written as base64. */
export async function unpack(packed: string): Promise<string> {
  const stream = new Blob([bytesOf(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

export function offlineModel(given: State): Model {
  const state: State = { ...given, offline: true };
  const listeners: Record<string, Listener[]> = {};
  const emit = (name: string, ...values: unknown[]) => {
    for (const callback of [...(listeners[name] ?? [])]) callback(...values);
  };
  return {
    get: (name) => state[name],
    set(name, value) {
      if (state[name] === value) return;
      state[name] = value;
      emit(`change:${name}`, this, value);
    },
    save_changes() {},
    send(content) {
      const asked = content as { kind?: string; id?: string };
      const reply = { kind: "response", id: asked.id, error: { message: NO_KERNEL } };
      if (asked.kind === "request") setTimeout(() => emit("msg:custom", reply, []));
    },
    on: (name, callback) => {
      (listeners[name] ??= []).push(callback as Listener);
    },
    off: (name, callback) => {
      listeners[name] = (listeners[name] ?? []).filter((each) => each !== callback);
    },
  };
}
