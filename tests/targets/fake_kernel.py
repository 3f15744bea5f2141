"""A kernel of its own: compiles the programs of its command line with fake workers, and prints what came of it."""

import sys
from pathlib import Path

from workbench.targets import CompilationCache, Worker, compile_for_target

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))

if __name__ == "__main__":
    cache, *programs = sys.argv[1:]
    worker = Worker(FAKE, compiler="fake 1")

    def say_pid(phase, seconds):
        if phase == "compiling":
            print(f"pid {worker.pid} {worker.directory}", flush=True)

    for program in programs:
        done = compile_for_target(
            program,
            "v5e:2x2",
            mesh_axes={"clients": 4},
            worker=worker,
            cache=CompilationCache(cache),
            progress=say_pid,
            timeout_seconds=100,
        )
        print(done.hlo, f"cached={done.cached}", flush=True)
