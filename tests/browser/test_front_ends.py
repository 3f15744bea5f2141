"""The same views in Notebook 7, in Voila, in a notebook that nobody runs, and as exported pages."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import records_examples as examples
import workbench_widgets
from lab import open_notebook, run_all, run_lab, set_theme
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page, Route, expect
from visitor import open_every_tab, open_tab

pytestmark = [pytest.mark.browser, pytest.mark.lab]

CODE = """
import records_examples as examples, workbench_widgets
view = workbench_widgets.Explorer(examples.fedavg_record())
def follow(change):  # a click goes to the kernel, and the kernel's answer comes back
    if change["new"].get("stage") == "0":
        view.select(client=3, stage="1")
view.observe(follow, "selection")
view"""


def write(root: Path, name: str, outputs: list[nbformat.NotebookNode] | None = None) -> str:
    cell = nbformat.v4.new_code_cell(CODE, outputs=outputs or [])
    made = nbformat.v4.new_notebook(cells=[cell])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, root / name)
    return name


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page from which nothing leaves this machine, and in which none of our modules may fail."""
    made = browser.new_page(viewport={"width": 1300, "height": 1200})
    wrong: list[str] = []
    # Modules of widgets are loaded from `blob:` addresses; other errors are those of the front end itself.
    made.on("pageerror", lambda error: wrong.append(str(error)) if "blob:" in (error.stack or "") else None)

    def keep_inside(route: Route) -> None:
        local = route.request.url.startswith(("http://127.0.0.1", "data:", "blob:", "about:", "file:"))
        route.continue_() if local else route.abort()

    made.route("**/*", keep_inside)
    yield made
    made.close()
    assert not wrong


def click_through(page: Page) -> None:
    """To the kernel and back, by mouse and by keyboard, in every tab."""
    view = page.locator("section.wb")
    view.locator('[data-stage="0"]').first.click(timeout=60_000)
    expect(view.get_by_role("tabpanel").locator(".wb-panel h2")).to_have_text("Client 3")
    for _ in open_every_tab(view):
        expect(view.locator("[role=tabpanel]:visible")).to_have_count(1)
        expect(view.locator(".wb-error:visible")).to_have_count(0)
    view.get_by_role("tab", selected=True).focus()
    page.keyboard.press("ArrowLeft")
    expect(view.get_by_role("tab", selected=True)).to_be_focused()
    expect(view.get_by_role("tab", selected=True)).not_to_have_text("Play")  # on into the place before


def test_explorer_in_notebook_7_is_clicked_through_and_follows_the_theme(
    page: Page, tmp_path_factory: pytest.TempPathFactory
):
    root = tmp_path_factory.mktemp("notebook7")
    name = write(root, "explorer.ipynb")
    with run_lab(root, tmp_path_factory.mktemp("home"), "notebook") as address:
        open_notebook(page, address, name, place="notebooks")
        assert run_all(page) == []
        click_through(page)
        grounds = []
        for theme in ("JupyterLab Light", "JupyterLab Dark"):
            set_theme(page, theme)
            grounds.append(page.locator("section.wb").evaluate("node => getComputedStyle(node).backgroundColor"))
        assert grounds[0] != grounds[1]


def test_explorer_in_voila_is_clicked_through(page: Page, tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("voila")
    name = write(root, "explorer.ipynb")
    with run_lab(root, tmp_path_factory.mktemp("home"), "voila") as address:
        page.goto(f"{address}/voila/render/{name}")
        click_through(page)


def executed() -> list[nbformat.NotebookNode]:
    """What running the cell leaves in the file; the state of widgets is not kept."""
    bundle = workbench_widgets.Explorer(examples.fedavg_record())._repr_mimebundle_()
    assert bundle is not None
    return [nbformat.v4.new_output("execute_result", data=bundle[0], metadata=bundle[1], execution_count=1)]


def test_notebook_opened_without_running_is_interactive(page: Page, lab: str, lab_root: Path):
    name = write(lab_root, "reopened.ipynb", executed())  # unsigned, so JupyterLab does not trust it
    open_notebook(page, lab, name)
    output = page.locator(".jp-OutputArea-output")
    view = output.get_by_role("group", name=examples_sentence(), exact=True).first
    expect(view).to_be_visible()
    open_tab(view, "Mesh")
    expect(view.locator("[data-device]")).to_have_count(8)


def examples_sentence() -> str:
    return workbench_widgets.Explorer(examples.fedavg_record()).describe()


def test_notebook_converted_to_html_shows_the_picture_without_a_network(page: Page, tmp_path: Path):
    write(tmp_path, "run.ipynb", executed())
    html, _ = HTMLExporter().from_filename(str(tmp_path / "run.ipynb"))
    (tmp_path / "run.html").write_text(html, encoding="utf-8")
    page.goto((tmp_path / "run.html").as_uri(), wait_until="domcontentloaded")
    picture = page.locator("figure img")
    expect(picture).to_have_attribute("alt", examples_sentence())
    assert picture.evaluate("node => node.decode().then(() => node.naturalWidth)") > 300


def test_exported_explorer_is_interactive_from_a_file(page: Page, tmp_path: Path):
    workbench_widgets.Explorer(examples.fedavg_record(), gradient=examples.gradient_record()).to_html(
        tmp_path / "view.html"
    )
    page.goto((tmp_path / "view.html").as_uri())
    view = page.locator("section.wb")
    open_tab(view, "HLO")
    view.locator('[data-collective="all-reduce.1"]').click()
    view.get_by_role("button", name="Graph", exact=True).click()
    box = view.locator(".wb-graph").get_by_role("button", name=re.compile("^instruction all-reduce.1:"))
    expect(box).to_have_class(re.compile("wb-selected"))
    open_tab(view, "Program")
    expect(view.get_by_role("tabpanel").locator(".wb-panel h2")).to_have_text("reduce_mean")
