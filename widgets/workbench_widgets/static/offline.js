// Stands in for the notebook: every widget of an exported page gets a model that holds its state and has no kernel.
const binary = (value) => {
  if (Array.isArray(value)) return value.map(binary);
  if (!value || typeof value !== "object") return value;
  if ("wb-base64" in value) return new DataView(Uint8Array.from(atob(value["wb-base64"]), (c) => c.charCodeAt(0)).buffer);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, binary(item)]));
};

function offlineModel(state) {
  const listeners = {};
  const emit = (name, ...args) => (listeners[name] ?? []).slice().forEach((callback) => callback(...args));
  state.offline = true;
  return {
    get: (key) => state[key],
    set(key, value) {
      if (state[key] === value) return;
      state[key] = value;
      emit(`change:${key}`, this, value);
    },
    save_changes() {},
    send(content) {
      const error = { message: "This page has no kernel. Open the notebook and run its cells to ask for new numbers." };
      if (content.kind === "request") setTimeout(() => emit("msg:custom", { kind: "response", id: content.id, error }, []));
    },
    on: (name, callback) => (listeners[name] ??= []).push(callback),
    off: (name, callback) => (listeners[name] = (listeners[name] ?? []).filter((f) => f !== callback)),
  };
}

globalThis.__workbenchChunks = JSON.parse(document.getElementById("wb-chunks").textContent);
const place = document.querySelector("main");
for (const { esm, state } of JSON.parse(document.getElementById("wb-state").textContent)) {
  const address = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { default: front } = await import(address);
  URL.revokeObjectURL(address);
  const el = document.createElement("div");
  place.append(el);
  front.render({ model: offlineModel(binary(state)), el });
}
