"""`workbench compare --since REF`: changes in snapshot files since a commit, as Markdown."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.errors import CommandError

_SNAPSHOTS = ":(glob)**/snapshots/*.json"  # file names of `record_snapshot`
_MOST_LINES = 80  # maximum number of lines of one file's difference


def describe_since(ref: str, files: Sequence[str]) -> str:
    """Lists the changes in snapshot files since a commit, for a pull-request comment."""
    root = Path(_git("rev-parse", "--show-toplevel").strip())
    paths = [str(Path(file).resolve()) for file in files] or [_SNAPSHOTS]
    listed = _git("diff", "--name-status", "--no-renames", "-z", ref, "--", *paths, folder=root).split("\0")
    changed = sorted(zip(listed[1::2], listed[::2], strict=False))
    new = _git("ls-files", "--others", "--exclude-standard", "-z", "--", *paths, folder=root).split("\0")
    changed += [(path, "A") for path in new if path]
    if not changed:
        return f"No snapshot differs from {ref}."
    return "\n".join(line for path, status in changed for line in _described(root, ref, path, status))


def _described(root: Path, ref: str, path: str, status: str) -> Iterator[str]:
    from workbench.testing import snapshot_differences

    yield f"### `{path}`"
    yield ""
    if status in ("A", "D"):
        yield "New snapshot." if status == "A" else "Snapshot removed."
        yield ""
        return
    rows, lines = snapshot_differences(_git("show", f"{ref}:{path}", folder=root), (root / path).read_text())
    if rows:
        yield "| figure | before | after |"
        yield "|---|---|---|"
        yield from (f"| {' | '.join(_cell(text) for text in row)} |" for row in rows)
        yield ""
    yield f"<details><summary>{len(lines)} lines of the file</summary>"
    yield from ("", "```diff", *lines[:_MOST_LINES], "```", "")
    if len(lines) > _MOST_LINES:
        yield f"and {len(lines) - _MOST_LINES} more lines"
    yield "</details>"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _git(*arguments: str, folder: Path | None = None) -> str:
    try:
        process = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        message = "`workbench compare --since` needs git, but there is no command `git`. Install git."
        raise CommandError(message) from error
    except subprocess.CalledProcessError as error:
        message = (
            f"`workbench compare --since` could not run git ({error.stderr.strip()[:200]}). The command compares files "
            "in a git repository with a commit: run it inside a repository, and fetch the commit first."
        )
        raise CommandError(message) from error
    return process.stdout
