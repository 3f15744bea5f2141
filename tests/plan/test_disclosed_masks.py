"""What plans say that clients disclose, against an interpreter that marks clients' values."""

import pytest

from tests.oracles.disclosure import drawn_programs, mistake

SAMPLE = 40  # of the 400 of `python -m tests.oracles.disclosure`


@pytest.mark.parametrize(("mask", "use", "k"), drawn_programs(SAMPLE, seed=0))
def test_sums_of_one_client_and_rows_are_found_and_no_others(mask, use, k):
    assert mistake(mask, use, k) == ""


def test_a_sum_of_one_client_that_is_not_named_is_a_mistake(monkeypatch):
    monkeypatch.setattr("workbench.plan._disclosure.single_client", lambda plan, step: "")
    assert "the sums depend on" in mistake("equal", "product", 0)
    assert mistake("all", "product", 0) == ""
