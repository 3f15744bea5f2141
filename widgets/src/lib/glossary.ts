// Words with an explanation for the first contact: on hover and on focus, and spoken.
import { h } from "./dom";
import type { ViewContext } from "./view";

type Words = Pick<ViewContext, "glossary" | "lessons">;

/** The glossary's own form of a word as it is used in a heading; undefined where it is not explained. */
export function glossaryKey(glossary: Words["glossary"], word: string): string | undefined {
  const whole = word.replace(/ per (client|device)$| in all$/, "");
  return [word, whole, whole.replace(/s$/, "")].find((each) => each in glossary);
}

/** A notebook next to the one that is open, as this host addresses it; null where the page is no notebook. */
function lessonAddress(path: string): string | null {
  const here = decodeURI(location.pathname);
  return here.endsWith(".ipynb") ? here.replace(/[^/]*$/, path) : null;
}

export function term(context: Words, word: string): Node | string {
  const key = glossaryKey(context.glossary, word);
  if (!key) return word;
  const [notebook, path] = context.lessons[key] ?? [];
  const address = path ? lessonAddress(path) : null;
  const where = address ? "Click to open the notebook that teaches it" : "Taught in notebook";
  const tip = notebook ? `${context.glossary[key]} ${where}: ${notebook}.` : context.glossary[key];
  const shared = { class: "wb-term", "aria-label": `${word}: ${tip}`, "data-tip": tip };
  return address
    ? h("a", { ...shared, href: address, target: "_blank", rel: "noopener" }, word)
    : h("span", { ...shared, tabindex: 0, role: "note" }, word);
}
