"""Slides of a notebook, as a lecture hall without a network sees them."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
import workbench_widgets
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import Browser, expect
from records_examples import fedavg_record
from workbench_widgets._saved import saved_page

from workbench import course

pytestmark = pytest.mark.browser

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "09-client-drift.ipynb"


def test_slides_need_no_network(browser: Browser, tmp_path: Path) -> None:
    (made,) = course.write_slides([NOTEBOOK], tmp_path, execute=False)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.context.set_offline(True)
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(made.as_uri())
    expect(page.locator(".reveal.ready")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("Space")
    shown = page.locator("section.present:not(.stack)")
    expect(shown.get_by_text("SCAFFOLD in formulas")).to_be_visible()
    assert [url for url in asked if not url.startswith("file:")] == []
    assert wrong == []
    formula = shown.locator("math[display=block]").first
    box = formula.bounding_box()
    assert box is not None
    assert box["width"] > 100  # drawn, not only there
    page.close()


def test_text_of_slides_is_readable_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    (made,) = course.write_slides([NOTEBOOK], tmp_path, execute=False)
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(made.as_uri())
    expect(page.locator(".reveal.ready")).to_be_visible()
    text = page.locator("section p").first
    expect(text).to_be_visible()
    scale = text.evaluate("p => p.getBoundingClientRect().width / p.offsetWidth")
    size = text.evaluate("p => parseFloat(getComputedStyle(p).fontSize)")
    assert scale * size > 8
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.close()


def notebook_with_view(folder: Path) -> Path:
    """A notebook whose second slide has a figure's long code, and whose third has a saved view."""
    view = workbench_widgets.Explorer(fedavg_record())
    saved = saved_page(view.saved(), "")
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    opening = new_markdown_cell("# What does a view show?\n\n**Time.** About 5 minutes.")
    figure = new_code_cell("\n".join(f"line = {n}" for n in range(40)))
    figure.outputs = [new_output("display_data", {"image/png": dot})]
    shown = new_code_cell("wb.show(record)")
    shown.outputs = [new_output("display_data", {"text/html": saved})]
    below = new_code_cell("print(lines)")
    lines = "\n".join(f"Line {n} of a long output." for n in range(60))
    below.outputs = [new_output("stream", text=f"\x1b[31m{lines}\x1b[0m")]  # a colour: it stays on one slide
    cells = [opening, new_markdown_cell("## A figure"), figure, new_markdown_cell("## A view"), shown, below]
    for cell, kind in zip(cells, ("slide", "slide", "-", "slide", "-", "slide"), strict=True):
        cell.metadata.slideshow = {"slide_type": kind}
    path = folder / "00-view.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_slides_show_views_fold_the_code_of_figures_and_follow_the_dark_scheme(
    browser: Browser, tmp_path: Path
) -> None:
    (made,) = course.write_slides([notebook_with_view(tmp_path)], tmp_path / "slides", execute=False)
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="dark")
    page.goto(made.as_uri())
    expect(page.locator(".reveal.ready")).to_be_visible()
    assert page.title().startswith("00 · What does a view show?")
    page.keyboard.press("PageDown")
    expect(page.locator("section.present details summary")).to_have_text("Code of the figure, 40 lines")
    expect(page.locator("section.present pre")).to_be_hidden()
    figure = page.locator("section.present img")
    assert "invert" in figure.evaluate("image => getComputedStyle(image).filter")
    background, text = page.evaluate(
        "[document.body, document.querySelector('section.present h2')].map((each, i) => "
        "getComputedStyle(each)[i ? 'color' : 'backgroundColor'])"
    )
    assert background == "rgb(22, 24, 28)"
    assert text == "rgb(255, 255, 255)"

    page.keyboard.press("PageDown")
    frame = page.frame_locator("section.present iframe.wb-view")
    tabs = frame.get_by_role("tab")
    expect(tabs.first).to_be_visible()
    tabs.nth(1).click()
    page.keyboard.press("PageDown")  # the focus is in the view: its frame hands on the presenter's key
    long = page.locator("section.present:not(.stack)")
    expect(long.locator("pre").last).to_contain_text("Line 59 of")
    scrolled = "section => section.scrollTop / (section.scrollHeight - section.clientHeight)"
    assert long.evaluate(scrolled) == 0
    page.evaluate("document.activeElement.blur()")
    for _ in range(3):  # an output that cannot be split scrolls to its end
        page.keyboard.press("PageDown")
    assert long.evaluate(scrolled) > 0.99
    page.close()


def long_notebook(folder: Path) -> Path:
    """A notebook whose second slide has long text, a long table, long code with outputs, and a warning."""
    text = new_markdown_cell("\n\n".join(["## Much", *(f"Paragraph {n}." for n in range(30)), "## More", "Text."]))
    table = new_markdown_cell("\n".join(["| n |", "|---|", *(f"| row {n} |" for n in range(50))]))
    functions = "\n\n".join(f"def f{n}(x):\n    y = x + {n}\n\n    return y" for n in range(20))
    code = new_code_cell(functions + "\nx = [\n" + "".join(f"    {n},\n" for n in range(60)) + "]")
    code.outputs = [
        new_output("stream", text="the result"),
        new_output("stream", name="stderr", text="a warning"),
    ]
    cells = [new_markdown_cell("# How long?\n\n**Time.** About 5 minutes."), text, table, code]
    for cell, kind in zip(cells, ("slide", "slide", "-", "-"), strict=True):
        cell.metadata.slideshow = {"slide_type": kind}
    path = folder / "00-long.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def of_each_slide(browser: Browser, deck: Path, body: str) -> list[dict[str, Any]]:
    """What a function of `slide`, in JavaScript, returns for each slide while it is shown."""
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(deck.as_uri())
    expect(page.locator(".reveal.ready")).to_be_visible()
    slides = page.evaluate(f"""() => Reveal.getSlides().map((slide) => {{
        const {{h, v}} = Reveal.getIndices(slide);
        Reveal.slide(h, v);
        {body}
    }})""")
    page.close()
    return slides


def test_long_content_continues_on_the_next_slide(browser: Browser, tmp_path: Path) -> None:
    (made,) = course.write_slides([long_notebook(tmp_path)], tmp_path / "slides", execute=False)
    slides = of_each_slide(
        browser,
        made,
        """
        const lines = [...slide.querySelectorAll(".jp-Cell-inputWrapper pre")].map((pre) => pre.textContent).join("");
        return {text: slide.textContent, code: lines, isLong: slide.classList.contains("too-long"),
                heads: slide.querySelectorAll("th").length, rows: slide.querySelectorAll("td").length,
                headings: slide.querySelectorAll("h2").length};
    """,
    )
    assert len(slides) > 6
    assert [slide["text"] for slide in slides if slide["isLong"]] == []
    text = "".join(slide["text"] for slide in slides)
    assert [text.count(f"Paragraph {n}.") for n in range(30)] == [1] * 30
    assert all(slide["heads"] == 1 for slide in slides if slide["rows"])  # each part of the table has its head
    assert sum(slide["rows"] for slide in slides) == 50
    assert all(slide["headings"] < 2 for slide in slides)
    code = "".join(slide["code"] for slide in slides)
    assert code.count("    return y") == 20  # with its indentation
    assert "".join(code.split()).endswith("58,59,]")
    assert "the result" in text
    assert "a warning" not in text


def test_map_of_the_course_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    index = course.write_site(sorted(NOTEBOOK.parent.glob("0[01458]-*.ipynb")), tmp_path, execute=False)
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(index.as_uri())
    (box,) = [each.bounding_box() for each in page.locator(".wb-map").all() if each.is_visible()]
    assert box is not None
    assert box["x"] + box["width"] <= 390
    label = page.locator(".wb-narrow").get_by_text("Start here").bounding_box()
    assert label is not None
    assert label["height"] > 10
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_printed_tables_stay_aligned_and_row_groups_keep_their_names(browser: Browser, tmp_path: Path) -> None:
    opening = new_markdown_cell("# How wide?\n\n**Time.** About 5 minutes.")
    printed, table = new_code_cell("print(table)"), new_code_cell("frame")
    printed.outputs = [new_output("stream", text="\n".join(f"row {n:03} {'·' * 110} end" for n in range(70)))]
    rows = "".join(f"<tr>{'<th rowspan=50>the group</th>' * (n == 0)}<th>{n}</th></tr>" for n in range(50))
    table.outputs = [new_output("execute_result", {"text/html": f"<table><tbody>{rows}</tbody></table>"})]
    for cell in (printed, table):
        cell.metadata.slideshow = {"slide_type": "slide"}
    nbformat.write(new_notebook(cells=[opening, printed, table]), tmp_path / "00-wide.ipynb")
    (made,) = course.write_slides([tmp_path / "00-wide.ipynb"], tmp_path / "slides", execute=False)
    slides = of_each_slide(
        browser,
        made,
        """
        const lines = [...slide.querySelectorAll(".jp-OutputArea-output pre")];
        return {text: slide.textContent, isLong: slide.classList.contains("too-long"),
                cut: lines.filter((each) => each.scrollWidth > each.clientWidth + 1).length,
                wrapped: lines.filter((each) => getComputedStyle(each).whiteSpace === "pre-wrap").length,
                spans: [...slide.querySelectorAll("th[rowspan]")].map((each) => each.rowSpan)};
    """,
    )
    assert [slide for slide in slides if slide["isLong"] or slide["cut"] or slide["wrapped"]] == []
    text = "".join(slide["text"] for slide in slides)
    assert [text.count(f"row {n:03}") for n in range(70)] == [1] * 70
    groups = [slide for slide in slides if slide["spans"]]
    assert len(groups) > 1
    assert all("the group" in slide["text"] for slide in groups)
    assert sum(span for slide in groups for span in slide["spans"]) == 50
