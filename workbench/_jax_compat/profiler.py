"""Access to JAX's internals for profiling: profiles captured in memory, and where live arrays were created.

Written against JAX 0.10, whose public profiler only writes to a directory (jax-ml/jax#40258 asks for more).
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
from jax._src import source_info_util as _source_info
from jax._src.lib import _profiler  # pyright: ignore[reportAttributeAccessIssue] -- compiled, without stubs
from jax._src.profiler import _profile_state as _profiler_state

from workbench._open_types import Foreign


class ProfilerBusyError(RuntimeError):
    """The profiler of this process could not start, usually because it is already running."""


def start_profile() -> Callable[[], list[bytes]]:
    """Starts the profiler; returns a function, callable from any thread, that stops it and returns `XSpace`s.

    A jaxlib without `ProfilerSession` writes to a temporary directory, which is read and removed.
    """
    session_type = getattr(_profiler, "ProfilerSession", None)
    if session_type is not None and hasattr(session_type, "stop"):
        try:
            session = session_type(_options())
        except RuntimeError as error:
            raise ProfilerBusyError(str(error)) from error
        return lambda: [_stop(session)]
    directory = tempfile.TemporaryDirectory(prefix="workbench-profile-")
    try:
        jax.profiler.start_trace(directory.name, profiler_options=_options())
    except RuntimeError as error:
        directory.cleanup()
        raise ProfilerBusyError(str(error)) from error

    def stop() -> list[bytes]:
        with directory:
            _stop_trace()
            return [file.read_bytes() for file in sorted(Path(directory.name).rglob("*.xplane.pb"))]

    return stop


def user_frame_of(array: object, is_users: Callable[[str], bool]) -> tuple[str, int, str] | None:
    """File, line and function in the user's code that created a live array; None if JAX does not know them."""
    traceback = getattr(array, "traceback", None)
    if traceback is None:
        return None
    for frame in traceback.frames:
        if _source_info.is_user_filename(frame.file_name) and is_users(frame.file_name):
            return frame.file_name, frame.line_num, frame.function_name
    return None


def _stop_trace() -> None:
    try:
        jax.profiler.stop_trace()
    except RuntimeError as error:
        _profiler_state.reset()  # otherwise JAX 0.10 would assume that this trace is still running
        if "ALREADY_EXISTS" in str(error):
            raise ProfilerBusyError(str(error)) from error
        raise


def _stop(session: Foreign) -> bytes:
    try:
        return session.stop()
    except RuntimeError as error:  # a second session starts silently and fails only when it stops
        if "ALREADY_EXISTS" in str(error):
            raise ProfilerBusyError(str(error)) from error
        raise


def _options() -> jax.profiler.ProfileOptions:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python frames would cost more than they are worth
    options.host_tracer_level = 2
    return options
