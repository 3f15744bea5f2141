"""What lecturers take from the notebooks, and the README of the package index."""

import re

import nbformat
from repository_files import ROOT, offenders

from benchmarks import course_kit

README = (ROOT / "README.md").read_text()
FIRST = ROOT / "notebooks" / "01-start-here.ipynb"


def sources(notebook, tag):
    return [cell.source for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def test_slides_show_the_question_and_no_solution(tmp_path):
    (page,) = course_kit.write_slides([FIRST], tmp_path)
    slides = page.read_text()
    notebook = nbformat.read(FIRST, as_version=4)
    assert notebook.cells[0].source.splitlines()[0].removeprefix("# ") in slides
    assert slides.count("<section>") > 10
    solutions = sources(notebook, "solution")
    assert solutions
    assert not any(line in slides for text in solutions for line in text.splitlines() if len(line) > 40)


def test_students_get_every_notebook_without_solutions(tmp_path):
    written = course_kit.write_students(tmp_path)
    assert len(written) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    assert not any(sources(nbformat.read(path, as_version=4), "solution") for path in written)


def test_the_cheat_sheet_is_one_page(tmp_path):
    made = course_kit.write_cheatsheet(tmp_path / "sheet.pdf").read_bytes()
    assert made.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", made)) == 1


def test_links_of_the_published_readme_are_absolute():
    text = course_kit.absolute_readme(README, "owner/name", "v1.0.0")
    links = re.findall(r'\]\(([^)\s]+)\)|src(?:set)?="([^"]+)"', text)
    targets = [page or file for page, file in links]
    assert [target for target in targets if not target.startswith("https://")] == []
    ours = [re.fullmatch(r"https://\S+?/owner/name/(?:blob/)?v1\.0\.0/([^#]+)(?:#.*)?", target) for target in targets]
    assert [found[1] for found in ours if found and not (ROOT / found[1]).exists()] == []
    assert len([found for found in ours if found]) >= 5


def test_first_code_cell_installs_where_the_package_is_missing():
    wanted = ("except ModuleNotFoundError", '%pip install --quiet "mapreduce-workbench[course]"')

    def missing(name):
        code = [cell.source for cell in nbformat.read(ROOT / name, as_version=4).cells if cell.cell_type == "code"]
        return [text for text in wanted if text not in code[0]]

    assert offenders([f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")], missing) == []
