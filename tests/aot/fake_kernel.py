"""A kernel of its own: compiles the programs of its command line with fake workers, and prints what came of it."""

import sys
from pathlib import Path

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


def compiler(cache):
    """A worker, and a function that compiles with it; quick to load, since JAX has no part in it."""
    from workbench.aot._cache import CompilationCache
    from workbench.aot._compile import compile_for_target
    from workbench.aot._process import Worker

    worker = Worker(FAKE, compiler="fake 1")

    def compile_fake(program, progress=None):
        return compile_for_target(
            program,
            "v5e:2x2",
            mesh_axes={"clients": 4},
            worker=worker,
            cache=CompilationCache(cache),
            progress=progress,
            timeout_seconds=100,
        )

    return worker, compile_fake


if __name__ == "__main__":
    directory, *programs = sys.argv[1:]
    worker, compile_fake = compiler(directory)

    def say_pid(phase, seconds):
        if phase == "compiling":
            print(f"pid {worker.pid} {worker.directory}", flush=True)

    for program in programs:
        done = compile_fake(program, say_pid)
        print(done.hlo, f"cached={done.cached}", flush=True)
