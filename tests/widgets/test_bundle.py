"""How a page gets the front end: little per widget, the bundle once."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import records_examples as examples
import workbench_widgets
from workbench_widgets._bundle import BUILT, CHUNKS, chunk, chunk_models, loader

WIDGETS = Path(__file__).parents[2] / "widgets"
MOST_LOADER_BYTES = 4_000


def test_committed_bundles_are_what_the_sources_build_to():
    if shutil.which("node") is None or not (WIDGETS / "node_modules").is_dir():
        pytest.skip("the front end's tools are not installed: `npm ci` in widgets")
    made = subprocess.run(["node", "build.mjs", "--check"], cwd=WIDGETS, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("name", CHUNKS)
def test_chunk_loads_nothing(name: str):
    code = chunk(name)["code"]
    assert not any(f'import("{scheme}' in code or f'from "{scheme}' in code for scheme in ("http:", "https:", "//"))


def test_unknown_chunk_is_refused():
    with pytest.raises(ValueError, match="only the parts workbench, editor"):
        chunk("other")


def test_all_widgets_share_the_models_of_the_bundle():
    assert chunk_models()["workbench"] is chunk_models()["workbench"]
    assert (BUILT / "workbench.js").read_text("utf-8") == chunk_models()["workbench"].code


def test_widget_itself_carries_a_few_lines_only():
    assert len(loader("explorer").encode()) < MOST_LOADER_BYTES


def test_exported_page_holds_the_bundle_once(tmp_path: Path):
    widget = workbench_widgets.Explorer(examples.fedavg_record())
    page = workbench_widgets.to_html([widget, widget])
    assert page.count("Permission is hereby granted") == 1  # the licences of the bundled packages ask for it
    marker = 'id="wb-chunks"'
    assert page.count(marker) == 1
    widget.close()


def test_exported_page_has_a_title_an_author_and_a_date():
    widget = workbench_widgets.Explorer(examples.fedavg_record())
    page = workbench_widgets.to_html([widget], title="A round <of> averaging", author="Ada <L>")
    assert "</svg> A round &lt;of&gt; averaging</h1>" in page  # after the mark
    assert re.search(r"Ada &lt;L&gt;, \d\d \w+ 20\d\d", page)
    widget.close()
