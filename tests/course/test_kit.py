"""What lecturers take from the course: editions, slides, a site, and the marks of a class."""

import base64
import csv
import io
import re
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from workbench import course
from workbench.cli import main
from workbench.course._pages import formulas_as_mathml
from workbench.course._parts import parts_of
from workbench.errors import CourseError, MissingDependencyError
from workbench.render import icon_link, mark

(ICON,) = re.findall('href="([^"]+)', icon_link())
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def sources(notebook, tag):
    return [cell.source for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def test_slides_show_the_question_and_no_solution(tmp_path):
    (page,) = course.write_slides(NOTEBOOKS[1:2], tmp_path, execute=False)
    slides, notebook = page.read_text(), nbformat.read(NOTEBOOKS[1], as_version=4)
    assert notebook.cells[0].source.splitlines()[0].removeprefix("# ") in slides
    assert slides.count("<section>") > 10
    assert ICON in slides.partition("</head>")[0]
    solutions = sources(notebook, "solution")
    assert solutions
    assert not any(line in slides for text in solutions for line in text.splitlines() if len(line) > 40)
    assert "The Workbench course · Foundations · 01" in slides


def test_first_exercise_shares_the_slide_of_its_heading(tmp_path):
    (page,) = course.write_slides(NOTEBOOKS[1:2], tmp_path, execute=False)
    (slide,) = re.findall(r"<section>(?:(?!</section>).)*>Exercises<.*?</section>", page.read_text(), re.DOTALL)
    assert ">01.1<" in slide
    assert ">01.2<" not in slide


def test_students_get_every_notebook_without_solutions(tmp_path):
    written = course.write_students(NOTEBOOKS, tmp_path)
    assert len(written) == len(NOTEBOOKS)
    text = "".join(path.read_text() for path in written)
    assert [word for word in ("check_solution", "folded cell", "or the solution's") if word in text] == []
    assert not any(sources(nbformat.read(path, as_version=4), "solution") for path in written)


def test_cheat_sheet_is_one_page(tmp_path):
    pdf = course.write_cheatsheet(tmp_path / "sheet.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", pdf)) == 1


def small_notebook(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    opening = new_markdown_cell("# Does it run?\n\n**Prerequisites.** None. **Time.** About 5 minutes.")
    nbformat.write(new_notebook(cells=[opening, *map(new_code_cell, cells)]), path)
    return path


def test_site_and_slides_are_executed_once_and_need_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    path, runs = small_notebook(tmp_path / "00-small.ipynb", "print(6 * 7)"), []
    index = Path()
    for _ in range(2):
        index = course.write_site([path], tmp_path / "site", report=runs.append)
    (slides,) = course.write_slides([path], tmp_path / "slides", report=runs.append)
    page = (tmp_path / "site" / "00-small.html").read_text()
    assert "42" in page
    assert "42" in slides.read_text()
    assert runs == ["executing 00-small.ipynb"]
    installed = tmp_path / "libraries" / "new-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: new\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(installed.parent)  # another library is installed: outputs may differ
    course.write_site([path], tmp_path / "site", report=runs.append)
    assert runs == ["executing 00-small.ipynb"] * 2
    assert "Does it run?" in index.read_text()
    assert re.findall(r'(?:src|href)="https?://[^"]+', page + index.read_text()) == []
    assert all(mark(size) in text for size, text in ((18, page), (44, index.read_text())))
    assert all(ICON in text for text in (page, index.read_text()))


@pytest.mark.parametrize(("caption", "kept"), [("The dark cells are complete.", 1), ("The loss falls.", 0)])
def test_figures_whose_text_names_shades_stay_light_in_dark_mode(tmp_path, caption, kept):
    cell = new_code_cell("figure;", outputs=[new_output("display_data", {"image/png": "iVBORw0KGgo="})])
    opening = new_markdown_cell("# Does it show?\n\n**Time.** About 5 minutes.")
    nbformat.write(new_notebook(cells=[opening, cell, new_markdown_cell(caption)]), tmp_path / "00-dark.ipynb")
    course.write_site([tmp_path / "00-dark.ipynb"], tmp_path / "site", execute=False)
    (shown,) = re.findall(r"<img [^>]*data:image/png[^>]*>", (tmp_path / "site" / "00-dark.html").read_text())
    assert shown.count("jp-needs-light-background") == kept


def test_lines_that_a_cell_prints_one_after_the_other_are_one_block(tmp_path):
    outputs = [new_output("stream", text=f"line {number}\n") for number in range(2)]
    opening = new_markdown_cell("# Does it print?\n\n**Time.** About 5 minutes.")
    nbformat.write(new_notebook(cells=[opening, new_code_cell("f()", outputs=outputs)]), tmp_path / "00-prints.ipynb")
    course.write_site([tmp_path / "00-prints.ipynb"], tmp_path / "site", execute=False)
    (slides,) = course.write_slides([tmp_path / "00-prints.ipynb"], tmp_path / "slides", execute=False)
    for page in (tmp_path / "site" / "00-prints.html", slides):
        assert "<pre>line 0\nline 1\n</pre>" in page.read_text()


def test_site_without_outputs_says_so(tmp_path):
    notebooks = [paths[-1] for paths in parts_of(NOTEBOOKS).values()]
    index = course.write_site(notebooks, tmp_path, execute=False)
    assert "no outputs" in index.read_text()
    assert index.read_text().count("<li>") == len(notebooks) > 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_formulas_of_every_notebook_become_mathml(path):
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    converted = re.sub("```.*?```|`[^`]*`", "", "\n\n".join(map(formulas_as_mathml, cells)), flags=re.DOTALL)
    assert re.findall(r"\$[^$\n]+\$", converted) == []


def test_page_folds_solutions_and_checks_and_leads_to_its_neighbours(tmp_path):
    answer, solution, checks = new_code_cell("answer = ..."), new_code_cell("solution = 6"), new_code_cell("assert 6")
    solution.metadata.tags, checks.metadata.tags = ["solution", "hide-input"], ["claims"]
    solution.outputs = [new_output("stream", text="✓ Right")]
    for name in ("00-first", "01-second"):
        opening = new_markdown_cell(f"# Is it {name}?\n\n**Time.** About 5 minutes.")
        nbformat.write(new_notebook(cells=[opening, answer, solution, checks]), tmp_path / f"{name}.ipynb")
    index = course.write_site(sorted(tmp_path.glob("*.ipynb")), tmp_path / "site", execute=False)
    page = (tmp_path / "site" / "00-first.html").read_text()
    visible = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    assert "answer" in visible
    assert '<body class="jp-Notebook" ' in page  # a named light theme would keep views light in dark mode
    assert [word for word in ("solution", "✓ Right", "assert") if word in visible.partition("<body")[2]] == []
    assert '<a href="01-second.html">Is it 01-second? →</a>' in visible
    assert 'Start with <a href="01-second.html">' in index.read_text()


def panels():
    """A figure with a label and two axes, of which the second is wider."""
    image = np.full((40, 100, 3), 255, np.uint8)
    for left, right in ((0, 12), (14, 44), (55, 58), (60, 99)):
        image[5:35, left:right] = 0
    written = io.BytesIO()
    Image.fromarray(image).save(written, "PNG")
    return {"image/png": base64.b64encode(written.getvalue()).decode()}


@pytest.mark.parametrize(("card", "size"), [({}, 100), ({"panel": "left"}, 50), ({"panel": "right"}, 50)])
def test_index_shows_the_chosen_figure_of_each_executed_notebook(tmp_path, card, size):
    small, large = ({"image/png": base64.b64encode(b"x" * size).decode()} for size in (9, 99))
    other = new_code_cell("other;", outputs=[new_output("display_data", data) for data in (small, large)])
    cell = new_code_cell("figure;", outputs=[new_output("display_data", panels())])
    cell.metadata.card = {"shows": 'Two "panels"', **card}
    opening = new_markdown_cell("# Does it show?\n\n**Time.** About 5 minutes.")
    nbformat.write(new_notebook(cells=[opening, other, cell]), tmp_path / "00-shown.ipynb")
    nbformat.write(new_notebook(cells=[opening, other]), tmp_path / "01-largest.ipynb")
    index = course.write_site(sorted(tmp_path.glob("*.ipynb")), tmp_path / "site", execute=False)
    assert '<img src="00-shown.png" alt="Two &quot;panels&quot;"' in index.read_text()
    with Image.open(tmp_path / "site" / "00-shown.png") as shown:
        assert shown.size == (size, 40)
    assert (tmp_path / "site" / "01-largest.png").read_bytes() == b"x" * 99


@pytest.mark.parametrize("library", ["latex2mathml", "sklearn"])
@pytest.mark.parametrize("write", [course.write_site, course.write_slides])
def test_missing_libraries_of_pages_and_notebooks_are_named_before_a_notebook_runs(
    tmp_path, monkeypatch, write, library
):
    runs = []
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        MissingDependencyError, match=rf"`{library}`.*extras.*mapreduce-workbench\[course,course-pages\]"
    ):
        write(NOTEBOOKS, tmp_path / "pages", report=runs.append)
    assert runs == []
    if library == "sklearn":  # pages without outputs do not need the notebooks' libraries
        course.write_site(NOTEBOOKS[3:4], tmp_path / "site", execute=False)


def test_cell_that_fails_is_named_with_its_notebook(tmp_path):
    path = small_notebook(tmp_path / "00-small.ipynb", "rain = 3\nassert rain < 3, 'too much'")
    with pytest.raises(CourseError, match=r"00-small\.ipynb, and a cell raised AssertionError at `assert rain < 3"):
        course.write_site([path], tmp_path / "site")


def test_marks_of_a_class_count_results_of_checks_alone(tmp_path, capsys):
    check = "import workbench as wb\n\nanswer = {}\nwb.course.check('12.3', answer)"
    small_notebook(tmp_path / "ada" / "a.ipynb", check.format((13, 2)), "wb.course.check('12.4', ...)")
    small_notebook(tmp_path / "bob" / "a.ipynb", check.format((13, 3)), "print('✓ 12.4: Right')", "1 / 0")
    (tmp_path / "cyd").mkdir()
    (tmp_path / "cyd" / "a.ipynb").write_text("not a notebook")
    assert main(["course", "grade", str(tmp_path), "--to", str(tmp_path / "marks.csv")]) == 0
    printed = capsys.readouterr()
    assert "ada  a.ipynb: 1 of 2" in printed.out
    assert "12.3: 1 of 2" in printed.out
    assert "WARNING" not in printed.err
    with (tmp_path / "marks.csv").open() as file:
        ada, bob, cyd = csv.DictReader(file)
    asked = ("student", "12.3", "12.4", "points", "of", "error")
    assert [ada[name] for name in asked] == ["ada", "right", "open", "1", "2", ""]
    assert [bob[name] for name in asked] == ["bob", "wrong", "missing", "0", "2", "ZeroDivisionError: division by zero"]
    assert bob["remarks"].startswith("12.3: ")
    assert cyd["points"] == "0"
    assert "not a notebook" in cyd["error"]


def test_folder_without_notebooks_is_refused(tmp_path):
    with pytest.raises(CourseError, match="has no notebook"):
        course.grade_folder(tmp_path)


def test_unknown_notebook_is_refused_with_the_names_of_the_course(tmp_path, capsys):
    assert main(["course", "students", "no-such", "--to", str(tmp_path)]) == 1
    assert "01-start-here" in capsys.readouterr().err
