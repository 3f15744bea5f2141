"""Time and memory at extreme sizes: `python -m benchmarks.extremes [CASE...]`.

Each case runs in a separate process, with growing sizes. Prints one line per size, with the processor time, the time of
JAX alone if JAX does the same work, and the resident memory. `flat` compares the last fifth with the second fifth of
work whose cost should not grow.

* programs: different programs inspected one after another in one process, and the same programs compiled by JAX alone;
* explorers: explorers of functions, opened and closed;
* equations: equations in one function, traced and planned; arrays: arguments of one function, traced and planned;
* compiled arrays: the same arguments, inspected; loops: nested loops, inspected, or JAX's own error;
* names: functions, arguments and files whose names have HTML, right-to-left marks or 500 letters, in an exported page.
"""

import argparse
import cProfile
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

Row = dict[str, Any]
SIZES = {
    "programs": (500,),
    "programs of JAX alone": (500,),
    "explorers": (200,),
    "equations": (2_000, 20_000, 200_000),
    "arrays": (50, 500, 5_000),
    "compiled arrays": (100, 300, 600),
    "loops": (10, 30, 100),
    "names": (1,),
}
LIMIT_SECONDS = 900


def _resident() -> float:
    """Resident memory in MiB, after free memory was returned to the system."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss / 2**20


def _turns(count: int, turn: Callable[[int], object]) -> Row:
    """Seconds and memory of the second and the last fifth of equal work."""
    seconds, memory, calls, objects, fifth = [], [], [], [], count // 5
    for number in range(count):
        began = time.process_time()
        turn(number)
        seconds.append(time.process_time() - began)
        if (number + 1) % fifth == 0:
            memory.append(_resident())
            objects.append(len(gc.get_objects()))
            calls.append(_calls(lambda number=number: turn(number)))
    return {
        "Python calls per step, after two fifths": calls[1],
        "Python calls per step, at the end": calls[-1],
        "objects kept per step": (objects[-1] - objects[1]) / (3 * fifth),
        "seconds per step, second fifth": statistics.median(seconds[fifth : 2 * fifth]),
        "seconds per step, last fifth": statistics.median(seconds[-fifth:]),
        "MiB after two fifths": memory[1],
        "MiB at the end": memory[-1],
    }


def _calls(turn: Callable[[], object]) -> int:
    """Number of Python and C calls in a step; a linear search through a cache would add calls."""
    profile = cProfile.Profile()
    profile.runcall(turn)
    return sum(each.callcount for each in profile.getstats())


def _tanh(w: Any, x: Any, depth: int) -> Any:
    import jax.numpy as jnp

    for _ in range(depth):
        x = jnp.tanh(x * w)
    return x


def programs(count: int, inspected: bool = True) -> Row:
    """Programs with different sizes and operations: one to ten operations in each ten programs."""
    import jax
    import jax.numpy as jnp

    import workbench as wb

    def turn(number: int) -> None:
        width, depth = 2 + number // 10, 1 + number % 10

        @wb.program(clients=4)
        def program(w: Any, x: Any) -> Any:
            return wb.reduce_mean(wb.map_fn(lambda w, x: _tanh(w, x, depth), (wb.broadcast(w), x)))

        args = jnp.ones(width), jnp.ones((4, width))
        if inspected:
            wb.inspect(program)(*args)
        else:
            jax.jit(lambda w, x: jax.vmap(lambda w, x: _tanh(w, x, depth), (None, 0))(w, x).mean(0)).lower(
                *args
            ).compile()

    return _turns(count, turn)


def explorers(count: int) -> Row:
    """Explorers of one function."""
    import jax.numpy as jnp

    import workbench as wb

    program = wb.program(clients=4)(lambda x: wb.reduce_mean(wb.map_fn(lambda row: row * 2, x)))
    return _turns(count, lambda _: wb.explore(program)(jnp.ones(4)).close())


def _planned(fn: Callable[..., Any], args: tuple[Any, ...]) -> Row:
    import jax

    import workbench as wb

    began = time.process_time()
    jax.make_jaxpr(fn)(*args)
    traced = time.process_time()
    plan = wb.trace(lambda *args: fn(*args))(*args).plan
    planned = time.process_time()
    return {
        "seconds": planned - traced,
        "JAX's trace alone": traced - began,
        "characters": len(str(plan)),
        "MiB": _resident(),
    }


def equations(count: int) -> Row:
    """An unrolled function."""
    import jax.numpy as jnp

    def chain(x: Any) -> Any:
        for _ in range(count // 2):
            x = jnp.tanh(x) + 1.0
        return x

    return _planned(chain, (jnp.ones(3),))


def _sum(*arrays: Any) -> Any:
    total = arrays[0]
    for each in arrays[1:]:
        total = total + each
    return total


def arrays(count: int) -> Row:
    """A function of many arguments."""
    import jax.numpy as jnp

    return _planned(_sum, tuple(jnp.ones(3) for _ in range(count)))


def compiled_arrays(count: int) -> Row:
    """The same function, compiled and inspected."""
    import jax
    import jax.numpy as jnp

    import workbench as wb

    args = tuple(jnp.ones(3) for _ in range(count))
    began = time.process_time()
    jax.jit(_sum).lower(*args).compile()
    compiled = time.process_time()
    record = wb.inspect(lambda *args: _sum(*args))(*args)
    done = time.process_time()
    assert record.module is not None
    return {"seconds": done - compiled, "JAX's compilation alone": compiled - began, "MiB": _resident()}


def loops(depth: int) -> Row:
    """Loops in loops."""
    import jax
    import jax.numpy as jnp

    import workbench as wb

    def nested(level: int, x: Any) -> Any:
        if level == 0:
            return jnp.tanh(x)
        return jax.lax.fori_loop(0, 2, lambda _, y: nested(level - 1, y), x)

    began = time.process_time()
    try:
        jax.jit(lambda x: nested(depth, x)).lower(jnp.ones(3)).compile()
    except RecursionError as error:
        alone: Any = f"{type(error).__name__} of JAX"
    else:
        alone = time.process_time() - began
    began = time.process_time()
    try:
        flops: Any = wb.inspect(lambda x: nested(depth, x))(jnp.ones(3)).module.flops  # pyright: ignore
    except Exception as error:
        flops = f"{type(error).__name__}: {str(error)[:200]}"
    return {"seconds": time.process_time() - began, "JAX's compilation alone": alone, "FLOPs": flops}


HOSTILE = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u202egnp.exe\u202c", "ב" * 500)


def names(_: int) -> Row:
    """Names that appear in views."""
    import jax.numpy as jnp

    import workbench as wb

    began, wrong = time.process_time(), []
    for name in HOSTILE:

        def client(x: Any) -> Any:
            return x * 2

        client.__name__ = name

        def average(tree: Any, client: Any = client, name: str = name) -> Any:
            return wb.reduce_mean(wb.map_fn(client, tree[name]))

        average.__name__ = name
        view = wb.explore(wb.program(clients=2)(average))({name: jnp.ones(2)})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            view.to_html(path)
            page = path.read_text()
        view.close()
        if "<" in name and name in page:
            wrong.append(name)
    return {"seconds": time.process_time() - began, "names": len(HOSTILE), "written as HTML": wrong or "none"}


CASES: dict[str, Callable[[int], Row]] = {
    "programs": programs,
    "programs of JAX alone": lambda count: programs(count, inspected=False),
    "explorers": explorers,
    "equations": equations,
    "arrays": arrays,
    "compiled arrays": compiled_arrays,
    "loops": loops,
    "names": names,
}


def _rows(case: str) -> Iterator[str]:
    for size in SIZES[case]:
        command = [sys.executable, "-m", "benchmarks.extremes", "--point", case, str(size)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            yield f"{case}, {size:,}: no answer in {LIMIT_SECONDS} s"
            continue
        if done.returncode:
            yield f"{case}, {size:,}: ended with {done.returncode}: {done.stderr.strip()[-400:]}"
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        figures = [f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()]
        yield f"{case}, {size:,}: {', '.join(figures)}"


def main() -> None:
    """Prints a line per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        case, size = given.point
        print(json.dumps(CASES[case](int(size))))
        return
    for case in given.cases or CASES:
        for line in _rows(case):
            print(line, flush=True)


if __name__ == "__main__":
    main()
