"""The code of a program in pages: cells of this kernel, and no file that only a record names."""

from pathlib import Path

from workbench_widgets._cells import cells_of, code_of


def test_name_of_a_cell_reads_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "ipykernel_1"
    folder.mkdir()
    (tmp_path / "secret").write_text("token = 1\n")
    (folder / "settings.py").write_text("token = 1\n")
    for name in (folder / "../secret", folder / "settings.py"):
        assert cells_of([str(name)]) == {}
        assert code_of([str(name)]) == []
