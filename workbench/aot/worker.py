"""The worker process with libtpu or the CUDA plugin: `python -m workbench.aot.worker DIRECTORY`.

The worker reads requests from its standard input and answers on its standard output, one at a time. The worker exits
when its input ends (even if the kernel is killed), and after it has been idle for some time. DIRECTORY belongs to the
worker and is removed when the worker exits.
"""

import contextlib
import os
import queue
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from workbench._types import Device
from workbench.aot._frames import FrameError, read_frame, write_frame

Report = Callable[[str], None]
Compile = Callable[[dict[str, Any], Report, Path], dict[str, Any]]

_IDLE_SECONDS = 900.0


def serve(compile_request: Compile, directory: Path, *, idle_seconds: float = _IDLE_SECONDS) -> NoReturn:
    """Answers requests until the kernel exits or the worker has been idle for too long.

    Args:
        compile_request: Answers one request: `(request, report, scratch directory) -> reply`. Exceptions are sent to
            the kernel as errors that contain the name of their class.
        directory: Folder that the worker may write to; removed when the worker exits.
        idle_seconds: The worker exits after this time without a request, to free its memory.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # compilers print to stdout
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(requests, directory), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # the kernel has exited
        while True:
            try:
                request = requests.get(timeout=idle_seconds)
            except queue.Empty:
                break
            write_frame(answers, _answer(compile_request, request, answers, directory))
    _leave(directory)


def _answer(compile_request: Compile, request: dict[str, Any], answers: BinaryIO, directory: Path) -> dict[str, Any]:
    def report(phase: str) -> None:
        write_frame(answers, {"id": request["id"], "kind": "progress", "phase": phase})

    scratch = Path(tempfile.mkdtemp(dir=directory))
    try:
        reply = compile_request(request, report, scratch)
    except BrokenPipeError:
        raise
    except Exception as error:
        return {"id": request["id"], "kind": "error", "type": type(error).__name__, "message": str(error)}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {"id": request["id"], "kind": "result", "value": reply}


def _read(requests: "queue.Queue[dict[str, Any]]", directory: Path) -> None:
    """Exits the process when its input ends, because a running compilation cannot be interrupted."""
    try:
        while (request := read_frame(sys.stdin.buffer)) is not None:
            requests.put(request)
    except (FrameError, OSError) as error:
        print(f"workbench.aot.worker: {error}", file=sys.stderr, flush=True)
    _leave(directory)


def _leave(directory: Path) -> NoReturn:
    """Exits immediately, because a normal Python exit would abort while a thread is still reading the input."""
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def compile_request(request: dict[str, Any], report: Report, scratch: Path) -> dict[str, Any]:
    """Compiles one program with the actual compiler, for `main`.

    The compiler writes its buffer assignment into `scratch`. The compiler's Python interface omits the largest buffers,
    and returns nothing at all if a program does not fit.
    """
    from workbench._jax_compat import aot  # imported here, because this import loads JAX with its plugins

    report("describing the devices")
    devices = aot.absent_devices(request["platform"], request["topology_name"], request["arguments"])
    sizes = [size for _, size in request["axes"]]
    ordered, order, notes = aot.order_devices(devices, sizes, request["slices"], request["order"])
    options = {"xla_dump_to": str(scratch), **request["options"]}
    log = scratch.parent / "stderr.txt"
    written = log.stat().st_size if log.exists() else 0
    report("compiling")
    started = time.monotonic()
    error = ""
    try:
        hlo, memory, cost = aot.compile_for_devices(request["stablehlo"], ordered, list(options.items()))
    except aot.OutOfMemoryError as out_of_memory:
        error, memory, cost = str(out_of_memory), {}, {}
        hlo = _dumped(options["xla_dump_to"], "after_optimizations.txt")
    seconds = time.monotonic() - started
    report("reading the result")
    live = _dumped(options["xla_dump_to"], "after_optimizations-live-range.txt")
    usage = _dumped(options["xla_dump_to"], "after_optimizations-memory-usage-report.txt")
    return {
        "hlo": hlo,
        "memory": memory,
        "cost": cost,
        "error": error,
        "seconds": seconds,
        "order": order,
        "notes": notes,
        "devices": [_device(device) for device in ordered],
        "peak": live.partition("(peak):\n")[2][:20_000],
        "usage": usage[:200],
        "said": memory_warning(log, written),
        "versions": {"jaxlib": aot.jaxlib_version(), "python": sys.version.split()[0]},
    }


def memory_warning(log: Path, start: int) -> str:
    """Compiler warnings about insufficient memory; "" if there are none.

    XLA's GPU compiler raises no error for a program that does not fit, but it warns if rematerialization cannot reduce
    the program's memory to the device's memory. The TPU compiler raises an error.
    """
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(start)
        warnings = re.findall(r"Can't reduce memory use below .*", file.read().decode(errors="replace"))
    return warnings[-1].strip() if warnings else ""


def _dumped(directory: str, ending: str) -> str:
    """The newest compiler file with this ending; "" if there is none."""
    files = sorted(Path(directory).glob(f"*{ending}"), key=lambda path: path.stat().st_mtime)
    return files[-1].read_text(errors="replace") if files else ""


def _device(device: Device) -> dict[str, Any]:
    coords = getattr(device, "coords", None) if device.platform == "tpu" else None  # always zeros on a GPU
    return {
        "id": int(device.id),
        "platform": str(device.platform),
        "kind": str(device.device_kind),
        "host": int(device.process_index),
        "coords": None if coords is None else [int(coordinate) for coordinate in coords],
        "core_on_chip": getattr(device, "core_on_chip", None),
        "slice_index": getattr(device, "slice_index", None),
    }


def main() -> NoReturn:
    """Runs the worker with the actual compiler in the directory named on the command line."""
    serve(compile_request, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
