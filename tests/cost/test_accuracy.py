"""Stated errors are those of the published points that no rate was fitted to."""

import json
import statistics
from collections import defaultdict

import pytest

from benchmarks import predictions
from workbench.cost import accuracy_of, accuracy_text, family_of, known_chip
from workbench.cost._accuracy import ACCURACY

RESULTS = json.loads(predictions.RESULTS.read_text())
POINTS = {point.id: point for point in predictions.points()}


def judged():
    """Errors of the points that are kept out of every fit, by family and kind."""
    found = defaultdict(list)
    for name in POINTS.keys() - predictions.fitted(POINTS.values()):
        predicted = RESULTS.get(name, {}).get("predicted")
        if predicted:
            point = POINTS[name]
            found[family_of(known_chip(point.chip)), point.kind].append(abs(predicted / point.seconds - 1))
    return found


def test_stated_errors_are_those_of_the_points():
    stated = {key: each for key, each in ACCURACY.items() if key[1] != "operation of a profile"}
    found = judged()
    assert stated.keys() == found.keys()
    for key, errors in found.items():
        assert stated[key].points == len(errors)
        assert stated[key].median == pytest.approx(statistics.median(errors), abs=0.005)
        assert stated[key].largest == pytest.approx(max(errors), abs=0.005)


def test_no_point_is_fitted_and_judged_and_every_group_is_judged():
    fitted = predictions.fitted(POINTS.values())
    groups = defaultdict(list)
    for point in POINTS.values():
        groups[point.kind, point.chip].append(point.id in fitted)
    assert all(not all(group) for group in groups.values())
    assert all(abs(2 * sum(group) - len(group)) <= 1 for group in groups.values())


def test_predictions_of_a_family_state_its_errors():
    row = accuracy_of(known_chip("v5e"), "memory")
    assert row is not None
    assert f"memory ±{row.median:.0%} (at most {row.largest:.0%}, {row.points} points)" in accuracy_text(
        known_chip("v5e")
    )


def test_errors_are_unknown_without_points():
    unlisted = known_chip("v5e").replace(name="unlisted")
    assert accuracy_of(unlisted, "memory") is None
    assert accuracy_text(unlisted) == "How far predicted seconds are off on unlisted is unknown."
