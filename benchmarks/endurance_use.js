// Opens the next tab of the explorer, chooses something there, and now and then opens a client.
async (turn, tabs) => {
  const view = document.querySelector("section.wb"), tab = tabs[turn % tabs.length], way = Math.floor(turn / tabs.length);
  const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  const named = (selector, text) => [...view.querySelectorAll(selector)].find((node) => node.textContent === text);
  const wait = async (find, what, seconds = 20) => {
    for (const end = Date.now() + 1000 * seconds; Date.now() < end; ) {
      const found = find();
      if (found) return found;
      await pause(100);
    }
    throw new Error(`the tab ${tab} has no ${what}`);
  };
  const click = (node, x, y) => {
    const box = node.getBoundingClientRect();
    node.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.left + x, clientY: box.top + y }));
  };
  (await wait(() => named("[role=tab]", tab), "such tab")).click();
  const panel = await wait(() => view.querySelector("[role=tabpanel]:not([hidden])"), "panel");
  const chosen = (menu, index) => {
    menu.selectedIndex = index;
    menu.dispatchEvent(new Event("change"));
  };
  if (tab === "Program") click((await wait(() => panel.querySelectorAll("[data-stage]")[turn % 3], "stage")), 30, 10);
  if (tab !== "Clients") return tab;
  const mode = await wait(() => panel.querySelector("select[aria-label='Show clients as']"), "menu");
  chosen(mode, way % 3);
  chosen(panel.querySelector("select[aria-label='Measure']"), way % 3);
  const number = panel.querySelector("input[aria-label='Go to client']");
  number.value = (17 * turn) % 4096;
  number.dispatchEvent(new Event("change"));
  if (way % 4) return tab;
  (await wait(() => named("button", "Open its values"), "button")).click();
  const opened = await wait(() => view.querySelector("iframe.wb-values"), "values", 60).catch(() => null);
  if (!opened) return `${tab}, one asked for`; // a busy computer: the values come while other tabs are looked at
  await pause(1000);
  named("button", "Close")?.click();
  return `${tab}, one opened`;
};
