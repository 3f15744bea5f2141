import threading
from collections import Counter

import jax
import pytest

from workbench._jax_compat import profiler
from workbench.errors import EngineError
from workbench.measurement._profile import capture_profile


def _counts(profile):
    return Counter((event.device, event.module, event.name) for event in profile.events)


def test_profile_in_memory_and_through_a_directory_hold_the_same_events(looped_round, monkeypatch):
    run = lambda: looped_round.compiled(*looped_round.args)  # noqa: E731
    jax.block_until_ready(run())
    in_memory = capture_profile(run)
    monkeypatch.setattr(profiler, "_profiler", None)
    on_disk = capture_profile(run)
    assert _counts(in_memory) == _counts(on_disk)
    assert len(in_memory.events) >= 8 * 3  # each device has three clients


def test_profile_sees_every_device_and_names_the_program(looped_round):
    profile = capture_profile(lambda: looped_round.compiled(*looped_round.args))
    assert {event.device for event in profile.events} == set(range(8))
    assert profile.modules() == {looped_round.module.name: len(profile.events)}
    assert profile.events[0].start_seconds == 0.0
    assert all(event.seconds >= 0 for event in profile.events)


def test_profile_returns_what_the_function_returned(looped_round):
    expected = looped_round.compiled(*looped_round.args)
    assert (capture_profile(lambda: looped_round.compiled(*looped_round.args)).result == expected).all()


def test_profile_of_nothing_is_empty():
    profile = capture_profile(lambda: 3)
    assert (profile.events, profile.result) == ((), 3)


def test_profile_passes_an_error_on_and_can_be_taken_again(looped_round):
    with pytest.raises(ZeroDivisionError):
        capture_profile(lambda: 1 / 0)
    assert capture_profile(lambda: looped_round.compiled(*looped_round.args)).events


@pytest.mark.parametrize("through", ["memory", "directory"])
def test_second_profile_at_a_time_is_an_error_that_says_so(through, monkeypatch):
    if through == "directory":
        monkeypatch.setattr(profiler, "_profiler", None)

    def inner():
        return capture_profile(lambda: jax.numpy.zeros(3))

    with pytest.raises(EngineError) as caught:
        capture_profile(inner)
    message = str(caught.value)
    assert message.startswith("`capture_profile` could not start the profiler (")
    assert "one profile at a time" in message
    assert "wait for the other measurement" in message
    assert capture_profile(lambda: 1).result == 1


def test_profile_from_another_thread_sees_the_devices_too(looped_round):
    profiles = []
    thread = threading.Thread(
        target=lambda: profiles.append(capture_profile(lambda: looped_round.compiled(*looped_round.args)))
    )
    thread.start()
    thread.join(60)
    assert {event.device for event in profiles[0].events} == set(range(8))
