// Long reference pages show each name with its first sentence. A button, a link to the name or a search in the page
// opens the rest.
(() => {
  const LONG = 6000; // pixels
  const content = document.querySelector(".content");
  if (!content || !location.pathname.includes("/reference/") || content.scrollHeight <= LONG) return;
  for (const entry of document.querySelectorAll("section > dl.py")) {
    const body = entry.querySelector(":scope > dd");
    if (!body) continue;
    const rest = [...body.children].slice(1);
    const more = document.createElement("div");
    more.append(...rest);
    const button = document.createElement("button");
    button.className = "wb-more";
    const name = entry.querySelector(".sig-name")?.textContent ?? "";
    button.setAttribute("aria-label", `Signature and details of ${name}`);
    const show = (open) => {
      if (open) more.removeAttribute("hidden");
      else more.setAttribute("hidden", "until-found");
      entry.classList.toggle("wb-closed", !open);
      button.textContent = open ? "Less" : "More";
      button.setAttribute("aria-expanded", String(open));
    };
    button.addEventListener("click", () => show(more.hasAttribute("hidden")));
    more.addEventListener("beforematch", () => show(true));
    body.append(button, more);
    show(false);
    const reveal = () => {
      const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (!target || !entry.contains(target)) return;
      show(true);
      target.scrollIntoView();
    };
    addEventListener("hashchange", reveal);
    reveal();
  }
})();
