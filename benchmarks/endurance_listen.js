// Runs in a page before anything else: what the page asks of others than this machine, and what goes wrong in it.
(() => {
  const local = /^((https?|wss?):\/\/127\.0\.0\.1|data:|blob:|about:)/;
  const seen = (window.__seen = { outside: [], wrong: [] });
  const note = (address) => local.test(String(address)) || seen.outside.push(String(address));
  const watch = new PerformanceObserver((list) => list.getEntries().forEach((each) => note(each.name)));
  watch.observe({ type: "resource", buffered: true });
  window.WebSocket = new Proxy(WebSocket, {
    construct(Socket, values) {
      note(new URL(values[0], location));
      return new Socket(...values);
    },
  });
  addEventListener("error", (event) => seen.wrong.push(event.message));
})();
