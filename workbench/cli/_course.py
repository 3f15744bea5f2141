"""`workbench course`: builds sites, slides and student editions, and grades a class."""

import argparse
import sys
from pathlib import Path
from typing import Any

from workbench.errors import CommandError


def add_course_commands(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds `course` and its subcommands to the command-line parser."""
    course = commands.add_parser(
        "course", help="build the course as a site, slides or student notebooks; grade submissions"
    )
    actions = course.add_subparsers(dest="action", metavar="action", required=True)
    for name, description, start in (
        ("site", "execute the notebooks; write a page for each of them, and an index", _site),
        ("slides", "execute the notebooks; write slides of them (reveal.js, works without a network)", _slides),
        ("students", "write notebooks without solutions", _students),
    ):
        action = actions.add_parser(name, help=description)
        action.add_argument(
            "notebooks", nargs="*", help="names, numbers or paths of notebooks (default: all of the course)"
        )
        action.add_argument("--to", type=Path, default=Path(f"course-{name}"), help=f"(default: course-{name})")
        if name == "students":
            action.add_argument(
                "--grader", choices=("nbgrader", "otter"), help="write source notebooks for this grader"
            )
        else:
            action.add_argument(
                "--no-outputs", action="store_true", help="do not execute the notebooks; pages have no outputs"
            )
        action.set_defaults(start=start)
    sheet = actions.add_parser("cheatsheet", help="write the course on one page (PDF)")
    sheet.add_argument("--to", type=Path, default=Path("cheatsheet.pdf"), help="(default: cheatsheet.pdf)")
    sheet.set_defaults(start=_cheatsheet)
    grade = actions.add_parser(
        "grade", help="run submitted notebooks (with this user's rights) and write a table of their marks"
    )
    grade.add_argument("folder", type=Path, help="FOLDER/STUDENT/NAME.ipynb, or notebooks without subfolders")
    grade.add_argument("--to", type=Path, default=Path("marks.csv"), help="(default: marks.csv)")
    grade.add_argument("--seconds", type=int, default=300, help="time limit for one cell in seconds (default: 300)")
    grade.set_defaults(start=_grade)


def _paths(names: list[str]) -> list[Path]:
    from workbench.cli._lab import course_names, find_course

    folder = find_course()
    course = {} if folder is None else course_names(folder)
    if not names:
        if not course:
            message = "`workbench course` found no notebooks in this installation. Pass the paths of notebooks."
            raise CommandError(message)
        return list(dict.fromkeys(course.values()))
    paths = [Path(name) if Path(name).is_file() else course.get(name.removesuffix(".ipynb")) for name in names]
    if unknown := [name for name, path in zip(names, paths, strict=True) if path is None]:
        message = (
            f"`workbench course` received {', '.join(unknown)}, which are neither files nor notebooks in the course. "
            f"The course has {', '.join(sorted({path.stem for path in course.values()})) or 'no notebooks here'}."
        )
        raise CommandError(message)
    return [path for path in paths if path is not None]


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _site(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.course import write_site

    choose_platform()
    execute = not arguments.no_outputs
    print(write_site(_paths(arguments.notebooks), arguments.to, execute=execute, report=_report))
    return 0


def _slides(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.course import write_slides

    choose_platform()
    execute = not arguments.no_outputs
    print(*write_slides(_paths(arguments.notebooks), arguments.to, execute=execute, report=_report), sep="\n")
    return 0


def _students(arguments: argparse.Namespace) -> int:
    from workbench.course import write_students

    print(*write_students(_paths(arguments.notebooks), arguments.to, grader=arguments.grader), sep="\n")
    return 0


def _cheatsheet(arguments: argparse.Namespace) -> int:
    from workbench.course import write_cheatsheet

    print(write_cheatsheet(arguments.to))
    return 0


def _grade(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.course import grade_folder, marks_as_csv

    choose_platform()
    submissions = grade_folder(arguments.folder, seconds=arguments.seconds, report=_report)
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    arguments.to.write_text(marks_as_csv(submissions), encoding="utf-8")
    for submission in submissions:
        error = f" ({submission.error})" if submission.error else ""
        print(f"{submission.student}  {submission.notebook}: {submission.points} of {len(submission.marks)}{error}")
    print("Right answers by exercise:")
    for name in sorted({name for paper in submissions for name in paper.marks}):
        marks = [paper.marks[name] for paper in submissions if name in paper.marks]
        print(f"  {name}: {marks.count('right')} of {len(marks)}")
    print(arguments.to)
    return 0
