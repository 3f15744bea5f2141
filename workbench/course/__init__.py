"""Self-grading course exercises, which check values, plans, and the bytes that a program sends.

`check("09.2", answer)` belongs to exercise 2 of notebook 09. A right answer returns a true `Grade`; a wrong answer
raises `WrongAnswerError` (an `AssertionError`). The same line therefore works in a notebook, in nbgrader and in Otter.
"""

from workbench.course._check import (
    check as check,
    check_solution as check_solution,
    exercises as exercises,
    right_answer as right_answer,
)
from workbench.course._marks import grade_folder as grade_folder, marks_as_csv as marks_as_csv
from workbench.course._notebooks import write_students as write_students
from workbench.course._pages import write_site as write_site, write_slides as write_slides
from workbench.course._sheet import write_cheatsheet as write_cheatsheet
