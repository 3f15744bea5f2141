import numpy as np
import pandas as pd
import pytest

from workbench.errors import MeasureError
from workbench.measurement import ClientProfiles, simulate_round
from workbench.measurement._simulate import _dropouts

# Work of 1e9 FLOP and 1 MB each way. Client 0: 1 s down + 1 s computing + 1 s up = 3 s; client 1 computes at half the
# speed: 4 s; client 2 has twice the link down and half the link up: 0.5 + 1 + 2 = 3.5 s.
PROFILES = ClientProfiles(
    flops_per_second=[1e9, 5e8, 1e9],
    down_bytes_per_second=[1e6, 1e6, 2e6],
    up_bytes_per_second=[1e6, 1e6, 5e5],
)
WORK = (1e9, 1e6, 1e6)


def statuses(line):
    return [outcome.status for outcome in line.outcomes]


def bars(line, client):
    return [(span.kind, span.start_seconds, span.seconds) for span in line.spans if span.client == client]


def test_synchronous_round_lasts_as_long_as_its_slowest_client():
    line = simulate_round(PROFILES, *WORK)
    assert line.seconds == 4.0
    assert statuses(line) == ["finished"] * 3
    assert [outcome.end_seconds for outcome in line.outcomes] == [3.0, 4.0, 3.5]
    assert bars(line, 2) == [("download", 0.0, 0.5), ("compute", 0.5, 1.0), ("upload", 1.5, 2.0)]
    assert all(span.complete for span in line.spans)


def test_idle_share_is_what_the_fast_clients_wait():
    line = simulate_round(PROFILES, *WORK)  # 10.5 s of work in 3 x 4 s
    assert line.idle_share == pytest.approx(1 - 10.5 / 12)


def test_deadline_ends_the_round_and_the_slow_client_is_late():
    line = simulate_round(PROFILES, *WORK, deadline_seconds=3.5)
    assert (line.seconds, line.finished) == (3.5, (0, 2))  # client 2 finishes at the deadline, which counts
    assert statuses(line) == ["finished", "late", "finished"]
    assert line.outcomes[1].needed_seconds == 4.0
    assert bars(line, 1) == [("download", 0.0, 1.0), ("compute", 1.0, 2.0), ("upload", 3.0, 0.5)]
    assert not line.spans[-4].complete  # the upload of client 1


def test_deadline_below_a_second_ends_the_round_with_nobody():
    line = simulate_round(PROFILES, *WORK, deadline_seconds=0.5)
    assert (line.seconds, line.finished) == (0.5, ())


def test_deadline_that_everybody_meets_changes_nothing():
    assert simulate_round(PROFILES, *WORK, deadline_seconds=10).seconds == 4.0


def test_round_that_wants_two_ends_with_the_second_client():
    line = simulate_round(PROFILES, *WORK, wanted=2)
    assert (line.seconds, line.finished) == (3.5, (0, 2))
    assert statuses(line) == ["finished", "surplus", "finished"]


def test_clients_that_are_not_needed_are_not_late_before_the_deadline():
    line = simulate_round(PROFILES, *WORK, wanted=2, deadline_seconds=10)
    assert statuses(line) == ["finished", "surplus", "finished"]
    assert statuses(simulate_round(PROFILES, 0.5, 0.0, 0.0, deadline_seconds=1e-12)) == ["late"] * 3


def test_work_may_differ_between_clients():
    line = simulate_round(PROFILES, [1e9, 5e8, 3e9], 1e6, 1e6)  # computing 1, 1 and 3 s
    assert [outcome.end_seconds for outcome in line.outcomes] == [3.0, 3.0, 5.5]


def test_selected_clients_keep_their_numbers():
    line = simulate_round(PROFILES, *WORK, selected=[2, 0])
    assert [outcome.client for outcome in line.outcomes] == [2, 0]
    assert line.seconds == 3.5


def with_dropouts(probability):
    return ClientProfiles(
        flops_per_second=np.full(2000, 1e9),
        down_bytes_per_second=1e6,
        up_bytes_per_second=1e6,
        dropout_probability=probability,
    )


def test_certain_dropout_leaves_nobody_and_ends_when_the_last_has_left():
    line = simulate_round(with_dropouts(1.0), *WORK)
    assert set(statuses(line)) == {"dropped"}
    left = [outcome.end_seconds for outcome in line.outcomes]
    assert line.seconds == max(left)
    assert all(0 <= each < 3.0 for each in left)
    assert np.mean(left) == pytest.approx(1.5, abs=0.1)  # evenly over 3 s: mean 1.5, its deviation 0.02


def test_dropouts_come_with_their_probability_and_with_the_seed():
    line = simulate_round(with_dropouts(0.1), *WORK, seed=1)
    dropped = statuses(line).count("dropped")
    assert abs(dropped - 200) < 60  # binomial: 200 with a deviation of 13
    assert simulate_round(with_dropouts(0.1), *WORK, seed=1) == line
    assert simulate_round(with_dropouts(0.1), *WORK, seed=2) != line


def test_dropped_client_has_bars_up_to_where_it_left():
    line = simulate_round(with_dropouts(1.0), *WORK)
    for outcome in line.outcomes[:50]:
        assert sum(seconds for _, _, seconds in bars(line, outcome.client)) == pytest.approx(outcome.end_seconds)


def test_round_that_wants_more_than_stay_says_so():
    line = simulate_round(with_dropouts(0.5), *WORK, wanted=1990)
    assert line.notes == (f"Only {len(line.finished)} clients finished; `wanted` is 1990.",)


def test_faster_clients_never_make_a_round_longer():
    speeds = np.random.default_rng(0).lognormal(size=(3, 50))
    slow = ClientProfiles(
        flops_per_second=1e10 * speeds[0], down_bytes_per_second=7e6 * speeds[1], up_bytes_per_second=2e6 * speeds[2]
    )
    fast = ClientProfiles(
        flops_per_second=2 * slow.flops_per_second,
        down_bytes_per_second=2 * slow.down_bytes_per_second,
        up_bytes_per_second=2 * slow.up_bytes_per_second,
    )
    assert simulate_round(fast, *WORK).seconds == pytest.approx(simulate_round(slow, *WORK).seconds / 2)


def test_profiles_pass_through_a_table_and_records():
    table = PROFILES.to_pandas()
    assert table.index.name == "client"
    pd.testing.assert_frame_equal(ClientProfiles.from_pandas(table).to_pandas(), table)
    assert PROFILES.records()[1].flops_per_second == 5e8


def test_profiles_cannot_be_changed_behind_a_result():
    with pytest.raises(ValueError, match="read-only"):
        PROFILES.flops_per_second[0] = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ClientProfiles(flops_per_second=[1, 2], down_bytes_per_second=[1, 2, 3], up_bytes_per_second=1),
            r"columns of the shapes .*'down_bytes_per_second': \(3,\).*one number for all clients",
        ),
        (
            lambda: ClientProfiles(
                flops_per_second=[0, -1, 1],
                down_bytes_per_second=np.inf,
                up_bytes_per_second=1,
                dropout_probability=1.5,
            ),
            r"flops_per_second 0 for client 0, -1 for client 1; down_bytes_per_second inf for client 0; "
            r"dropout_probability 1.5 for client 0",
        ),
        (
            lambda: ClientProfiles.from_pandas(pd.DataFrame({"speed": [1.0]})),
            r"columns \['speed'\], without \['flops_per_second', 'down_bytes_per_second', 'up_bytes_per_second'\]. A "
            r"profile needs a speed and two bandwidths: rename or add",
        ),
        (lambda: simulate_round(PROFILES, [1.0, 2.0], 1, 1), r"`flops_per_client` of shape \(2,\) for 3 .*\(3,\)"),
        (lambda: simulate_round(PROFILES, 1, -1, 1), r"`down_bytes` of shape \(\).*below zero or not finite"),
        (lambda: simulate_round(PROFILES, 1, 1, []), r"`up_bytes` of shape \(0,\) for 3 clients, with values below"),
        (lambda: simulate_round(PROFILES, *WORK, deadline_seconds=0), r"deadline_seconds=0.*pass a positive deadline"),
        (lambda: simulate_round(PROFILES, *WORK, wanted=4), r"wanted=4 for 3 clients.*between 1 and 3"),
        (lambda: simulate_round(PROFILES, *WORK, selected=[0, 7]), r"unknown clients \[7\].*numbers from 0 to 2"),
        (lambda: simulate_round(PROFILES, *WORK, selected=[0, 0]), r"selected=\[0, 0\].*takes part once"),
    ],
    ids=[
        "lengths", "values", "columns", "work", "bytes", "nothing", "deadline", "wanted", "unknown", "twice",
    ],
)  # fmt: skip
def test_impossible_simulation_is_an_error(make, message):
    with pytest.raises(MeasureError, match=message):
        make()


def test_share_of_work_after_which_a_client_drops_out_does_not_depend_on_its_probability():
    ones = np.ones(2000)
    many = ClientProfiles(
        flops_per_second=ones, down_bytes_per_second=ones, up_bytes_per_second=ones, dropout_probability=0.3 * ones
    )
    shares = _dropouts(many, seed=0)
    dropped = shares[np.isfinite(shares)]
    assert len(dropped) / 2000 == pytest.approx(0.3, abs=0.04)  # three standard deviations and more
    assert np.quantile(dropped, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.08)


def test_twenty_clients_are_listed():
    with pytest.raises(MeasureError) as error:
        simulate_round(PROFILES, *WORK, selected=range(3, 28))
    listed = list(range(3, 23))
    assert f"selected={listed} for 3 clients, with unknown clients {listed}. " in str(error.value)


@pytest.mark.parametrize(
    ("options", "accepted"),
    [({"wanted": 1}, True), ({"wanted": 3}, True), ({"wanted": 0}, False), ({"wanted": 4}, False),
     ({"deadline_seconds": 1e-9}, True), ({"deadline_seconds": 0.0}, False)],
)  # fmt: skip
def test_limits_of_a_round(options, accepted):
    if accepted:
        assert simulate_round(PROFILES, *WORK, **options).name == "round"
        return
    with pytest.raises(MeasureError):
        simulate_round(PROFILES, *WORK, **options)
