(() => {
  const models = {}, cleanups = {};
  const decode = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const put = (state, paths, buffers) =>
    paths.forEach((path, i) => {
      let place = state;
      for (const key of path.slice(0, -1)) place = place[key];
      place[path.at(-1)] = decode(buffers[i]);
    });

  function fakeModel(id, state) {
    const listeners = {};
    let changed = {};
    const emit = (name, ...args) => (listeners[name] ?? []).slice().forEach((callback) => callback(...args));
    const model = {
      get: (key) => state[key],
      set(key, value) {
        if (state[key] === value) return;
        state[key] = changed[key] = value;
        emit(`change:${key}`, model, value);
      },
      save_changes() {
        const update = changed;
        changed = {};
        window.wbToKernel(id, { method: "update", state: update, buffer_paths: [] }, []).then(window.wbApply);
      },
      send(content) {
        window.wbToKernel(id, { method: "custom", content }, []).then(window.wbApply);
      },
      // One event a call: not every host splits a list of them (marimo does not).
      on: (name, callback) => (listeners[name] ??= []).push(callback),
      off: (name, callback) => (listeners[name] = (listeners[name] ?? []).filter((f) => f !== callback)),
      listeners: () => Object.values(listeners).flat().length,
      receive(data, buffers) {
        if (data.method === "custom") return emit("msg:custom", data.content, buffers.map(decode));
        if (data.method !== "update") return;
        put(data.state, data.buffer_paths ?? [], buffers);
        Object.assign(state, data.state);
        Object.keys(data.state).forEach((key) => emit(`change:${key}`, model, state[key]));
      },
    };
    return (models[id] = model);
  }

  window.wbApply = (messages) => messages.forEach(([id, data, buffers]) => models[id]?.receive(data, buffers));
  let asking = true;
  const asked = (async () => {
    while (asking) {
      window.wbApply(await window.wbFromThreads());
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  })();
  window.wbStopAsking = () => {
    asking = false;
    return asked;
  };
  window.wbListeners = (id) => models[id].listeners();
  window.wbUnmount = (id) => {
    cleanups[id]?.();
    document.getElementById(`w-${id}`).remove();
  };
  window.wbMount = async (id, state, buffers, paths) => {
    put(state, paths, buffers);
    if (!document.getElementById("wb-style")) {
      const style = document.createElement("style");
      style.id = "wb-style";
      style.textContent = state._css;
      document.head.append(style);
    }
    const address = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
    const { default: front } = await import(address);
    const el = document.createElement("div");
    el.id = `w-${id}`;
    document.body.append(el);
    cleanups[id] = await front.render({ model: fakeModel(id, state), el });
  };
})();
