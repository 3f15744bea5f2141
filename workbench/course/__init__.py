"""Exercises of the course that grade themselves: values, and also plans and the bytes that a program sends.

`check("09.2", answer)` belongs to exercise 2 of notebook 09. A right answer returns a `Grade` that is true, a wrong one
raises `WrongAnswerError` (an `AssertionError`), so that the same line works in a notebook, in nbgrader and in Otter.
"""

from workbench.course._check import Grade as Grade, check as check, exercises as exercises
