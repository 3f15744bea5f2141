"""The pages say what the code does: README, CHANGELOG, CONTRIBUTING, notebooks."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from PIL import Image
from repository_files import ROOT, code_blocks, offenders, project, tracked_files

import workbench
from benchmarks import performance_pictures
from workbench import errors
from workbench.cli import main

README = (ROOT / "README.md").read_text()
PAGES = [name for name in tracked_files() if name.endswith(".md")]
NOTEBOOKS = [name for name in tracked_files() if name.endswith(".ipynb")]


def attributes_of_workbench(code):
    """The names that code takes from `workbench` or `wb`."""
    taken = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)]
    return {node.attr for node in taken if isinstance(node.value, ast.Name) and node.value.id in ("wb", "workbench")}


def test_names_in_the_code_of_pages_exist():
    def unknown(page):
        taken = {name for block in code_blocks(page, "python") for name in attributes_of_workbench(block)}
        return [name for name in taken if not hasattr(workbench, name)]

    assert offenders(PAGES, unknown) == []


def test_code_of_how_to_pages_is_not_cut():
    def too_long(page):
        return [line for block in code_blocks(page, "python") for line in block.splitlines() if len(line) > 88]

    assert offenders([page for page in PAGES if page.startswith("docs/how-to/")], too_long) == []


def test_every_environment_variable_of_ours_is_documented():
    sources = [name for name in tracked_files() if name.startswith(("workbench/", "widgets/workbench_widgets/"))]
    texts = [(ROOT / name).read_text() for name in sources if name.endswith(".py")]
    named = {name for text in texts for name in re.findall(r"\bWORKBENCH_[A-Z_]+\b", text)}
    documented = (ROOT / "docs/architecture.md").read_text()
    assert sorted(name for name in named if f"`{name}`" not in documented) == []


def test_links_of_pages_lead_somewhere():
    def broken(page):
        links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text())
        return [link for link in links if "://" not in link and not leads_somewhere(page, link)]

    assert offenders(PAGES, broken) == []


def test_tests_that_the_threat_model_names_exist():
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/threat-model.md").read_text())
    assert len(named) > 10
    missing = [
        (file, test) for file, test in named if f"def {test}" not in (ROOT / "tests" / file).read_text() and test
    ]
    assert missing == []


def test_files_that_pages_name_exist():
    def missing(page):
        named = re.findall(r"(?<![\w/.])(?:tests|benchmarks|workbench)/[\w/.-]*\w", (ROOT / page).read_text())
        return [name for name in named if not (ROOT / name).exists()]

    ours = [page for page in PAGES if not page.startswith("tests/recorded/")]  # which names files of other projects
    assert offenders([*ours, "run.py"], missing) == []


def leads_somewhere(page, link):
    file, _, anchor = link.partition("#")
    if page.startswith("docs/") and file.startswith("course/"):
        return (ROOT / "notebooks" / file.removeprefix("course/")).exists()
    target = (ROOT / page).parent / file if file else ROOT / page
    if not target.exists() or not anchor:
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_example_runs(capsys):
    (example,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(example, "<example of the README>", "exec"), {})  # as a reader would
    # The loss of a client is mean((x·w)²) = 9 with x and w all ones; its gradient is 2·3·1 = 6 in each of 3 weights.
    assert "[6. 6. 6.]" in capsys.readouterr().out


@pytest.mark.skipif(
    not jax.__version__.startswith("0.10."),
    reason="the README shows bytes and fusions of JAX 0.10",
)
def test_readme_ten_lines_print_what_it_shows(tmp_path):
    (lines,) = re.findall(r"<!-- ten lines -->\n```python\n(.*?)```", README, flags=re.DOTALL)
    (shown,) = re.findall(r"<!-- the lines print -->\n```text\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "step.py").write_text(lines)
    run = subprocess.run([sys.executable, "step.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown in run.stdout


def test_readme_lines_for_any_function_run(tmp_path, monkeypatch):
    (lines,) = re.findall(r"<!-- any function -->\n```python\n(.*?)```", README, flags=re.DOTALL)
    if importlib.util.find_spec("libtpu") is None:  # the one line that needs the compiler of TPUs
        lines = re.sub(r'^.*on="v5e:.*\n', "", lines, flags=re.MULTILINE)
    recorded = tmp_path / "logdir" / "plugins" / "profile" / "2026_11_23"
    recorded.mkdir(parents=True)
    shutil.copy(ROOT / "tests/recorded/tpu_v6e_4chips_host_offload.xplane.pb", recorded)
    monkeypatch.chdir(tmp_path)
    train_step = jax.jit(lambda state, batch: state - 0.1 * jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(state))
    exec(lines, {"wb": workbench, "train_step": train_step, "state": jnp.ones((8, 4)), "batch": jnp.ones((16, 8))})
    assert "<html" in (tmp_path / "page.html").read_text()[:300]


def test_page_of_errors_draws_the_tree_of_the_code():
    tree = re.search(r"^WorkbenchError\n(?:[├└│].*\n)+", (ROOT / "docs" / "errors.md").read_text(), flags=re.MULTILINE)
    assert tree
    assert tree[0] in errors.__doc__


def test_tree_of_errors_names_every_class_with_its_builtin():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.WorkbenchError)]
    for error in classes[1:]:
        builtins = [f" ({base.__name__})" for base in error.__bases__ if base.__module__ == "builtins"]
        assert f"── {error.__name__}{''.join(builtins)}" in errors.__doc__


@pytest.mark.parametrize("name", ["run", "test"])
def test_ci_finds_the_commands_in_the_readme(name):
    script = (ROOT / ".ci" / "run").read_text()
    reader = script[script.index("readme_command() {") : script.index("\n}\n") + 3]
    found = subprocess.run(
        ["bash", "-c", f"{reader}\nreadme_command {name}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout == {"run": "python3 run.py demo\n", "test": "python3 run.py test\n"}[name]


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"workbench (\w+)(?:\s|`)", "\n".join(code_blocks("README.md", "bash")))))
)
def test_commands_of_the_readme_exist(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"workbench {command}" in capsys.readouterr().out


def test_changelog_begins_with_the_version_of_the_package():
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == project()["version"]
    assert versions == sorted(versions, key=lambda v: tuple(map(int, v.split("."))), reverse=True)


def test_notebooks_are_committed_without_outputs():
    def outputs(name):
        cells = json.loads((ROOT / name).read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        return ["".join(cell["source"]) for cell in code if cell["outputs"] or cell["execution_count"] is not None]

    assert offenders(NOTEBOOKS, outputs) == []


def test_notebooks_have_numbers_of_their_own():
    numbers = [name.removeprefix("notebooks/")[:3] for name in NOTEBOOKS]
    assert [number for number in numbers if not re.fullmatch(r"\d\d-", number)] == []
    assert len(set(numbers)) == len(numbers)


def test_list_of_notebooks_links_each_of_them_with_a_picture():
    page = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w-]+\.ipynb)\)", page)
    pictures = re.findall(r'src="([^"]+)"', page)
    assert sorted(f"notebooks/{name}" for name in linked) == sorted(NOTEBOOKS)
    assert len(pictures) == len(linked)
    assert [picture for picture in pictures if not (ROOT / "notebooks" / picture).exists()] == []


def test_pictures_of_the_page_on_performance_were_drawn_from_its_tables():
    for name, rows, _ in performance_pictures.pictures():
        for theme in ("light", "dark"):
            with Image.open(performance_pictures.IMAGES / f"{name}-{theme}.png") as picture:
                assert picture.info["Description"] == performance_pictures.text_of(rows), (name, theme)
