"""Puts the course and the labextension into the wheel; everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class BuildWithCourse(build_py):
    """Copies `notebooks/` into the package as `workbench/course/`."""

    def run(self) -> None:
        """Builds the packages, then adds the notebooks; an editable installation finds them beside the package."""
        super().run()
        if not self.editable_mode:
            course = Path(self.build_lib) / "workbench" / "course"
            course.mkdir(parents=True, exist_ok=True)
            for notebook in sorted(Path("notebooks").glob("*.ipynb")):
                shutil.copyfile(notebook, course / notebook.name)


class DistributionWithData(Distribution):
    """Installs the data files of an editable installation too: setuptools asks for `has_data`, which it lacks."""

    def has_data(self) -> bool:
        """Whether `editable_wheel` runs the command `install_data`."""
        return bool(self.has_data_files())


WIDGETS = Path("widgets/workbench_widgets")
LABEXTENSION = "share/jupyter/labextensions/mapreduce-workbench"
# What JupyterLab serves: the extension, and the views' code and style for notebooks that are read without a kernel.
SERVED = [
    *WIDGETS.glob("labextension/static/*"),
    *(WIDGETS / "static" / "built" / f"{name}.js" for name in ("workbench", "editor", "runs", "player", "graph")),
    WIDGETS / "static" / "built" / "styles.css",
]

setup(
    distclass=DistributionWithData,
    cmdclass={"build_py": BuildWithCourse},
    data_files=[
        (LABEXTENSION, [str(WIDGETS / "labextension" / "package.json")]),
        (f"{LABEXTENSION}/static", sorted(map(str, SERVED))),
    ],
)
