"""Path to the course's notebooks, relative to the open notebook."""

from pathlib import Path

from workbench.render import LESSONS

_FOLDERS = ("", "notebooks/", "../notebooks/")


def find_lessons() -> dict[str, list[str]]:
    """The teaching notebook for each glossary term, with its relative path if the notebook is found.

    Example:
        >>> find_lessons()["shard"][0]
        '04-shardings-and-meshes'
    """
    places = {notebook: _path(notebook) for notebook in set(LESSONS.values())}
    return {word: [notebook, places[notebook]] for word, notebook in LESSONS.items()}


def _path(notebook: str) -> str:
    paths = (f"{folder}{notebook}.ipynb" for folder in _FOLDERS)
    return next((path for path in paths if Path(path).is_file()), "")
