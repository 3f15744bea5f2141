"""The README of a package index, and the first cells of notebooks."""

import re

import nbformat
from repository_files import ROOT, offenders

from benchmarks import published_readme

README = (ROOT / "README.md").read_text()


def test_links_of_the_published_readme_are_absolute():
    text = published_readme.absolute_readme(README, "owner/name", "v1.0.0")
    links = re.findall(r'\]\(([^)\s]+)\)|src(?:set)?="([^"]+)"', text)
    targets = [page or file for page, file in links]
    assert [target for target in targets if not target.startswith("https://")] == []
    ours = [re.fullmatch(r"https://\S+?/owner/name/(?:blob/)?v1\.0\.0/([^#]+)(?:#.*)?", target) for target in targets]
    assert [found[1] for found in ours if found and not (ROOT / found[1]).exists()] == []
    assert len([found for found in ours if found]) >= 5


def test_first_code_cell_imports_the_libraries_that_only_an_extra_brings():
    def missing(name):
        code = [cell.source for cell in nbformat.read(ROOT / name, as_version=4).cells if cell.cell_type == "code"]
        used = re.findall(r"^ *(?:from|import) (sklearn|flax)\b", "\n".join(code[1:]), flags=re.MULTILINE)
        return [library for library in used if library not in code[0]]

    assert offenders([f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")], missing) == []


def test_first_code_cell_says_how_to_install_where_the_package_is_missing():
    wanted = ("except ModuleNotFoundError", "from a clone: pip install '.[course]'")

    def missing(name):
        code = [cell.source for cell in nbformat.read(ROOT / name, as_version=4).cells if cell.cell_type == "code"]
        return [text for text in wanted if text not in code[0]]

    assert offenders([f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")], missing) == []
