// Opens the next tab of the explorer, chooses something there, and now and then opens a client.
async (turn, tabs) => {
  const view = document.querySelector("section.wb"), tab = tabs[turn % tabs.length], way = Math.floor(turn / tabs.length);
  const named = (selector, text) => [...view.querySelectorAll(selector)].find((node) => node.textContent === text);
  const click = (node, x, y) => {
    const box = node.getBoundingClientRect();
    node.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.left + x, clientY: box.top + y }));
  };
  const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  named("[role=tab]", tab).click();
  const panel = view.querySelector("[role=tabpanel]:not([hidden])");
  const choose = (menu, index) => {
    menu.selectedIndex = index;
    menu.dispatchEvent(new Event("change"));
  };
  if (tab === "Program") click(panel.querySelectorAll("[data-stage]")[turn % 3], 30, 10);
  if (tab !== "Clients") return tab;
  const [mode, measure] = panel.querySelectorAll("select");
  choose(mode, way % 3);
  choose(measure, way % 3);
  if (mode.value === "table") panel.querySelector("tr[data-client] button").click();
  else click(panel.querySelector(".wb-canvas canvas"), 60 + (turn % 50), 60);
  if (way % 4) return tab;
  while (!named("button", "Open its values")) await pause(100);
  named("button", "Open its values").click();
  while (!view.querySelector("iframe.wb-values")) await pause(200);
  await pause(1000);
  named("button", "Close").click();
  return `${tab}, one opened`;
};
