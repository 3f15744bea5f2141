"""A worker with the real loop and a compiler that does what the text of its program says.

The program `sleep 30` takes half a minute, `signal SIGFPE` dies of it, `exit 3` ends, `raise words` refuses, a real
module of a function `sleep_30` sleeps too, anything else compiles at once.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path


def compile_as_ordered(request, report, scratch):
    report("compiling")
    (scratch / "dump.txt").write_text(request["stablehlo"])
    named = re.search(r"@jit_sleep_(\d+)", request["stablehlo"])
    what, _, argument = f"sleep {named[1]}".partition(" ") if named else request["stablehlo"].partition(" ")
    if what == "sleep":
        time.sleep(float(argument))
    elif what == "signal":
        print("F0000 fake.cc:1] Check failed: chips <= 16", file=sys.stderr, flush=True)
        if argument != "SIGKILL":
            signal.signal(signal.Signals[argument], signal.SIG_DFL)
        os.kill(os.getpid(), signal.Signals[argument])
    elif what == "exit":
        os._exit(int(argument))
    elif what == "raise":
        raise RuntimeError(argument)
    elif what == "print":
        print("compilers print on standard output")
    ids = range(request["axes"][0][1])
    devices = [
        {
            "id": i,
            "platform": "tpu",
            "kind": "fake",
            "host": 0,
            "coords": [i, 0, 0],
            "core_on_chip": 0,
            "slice_index": None,
        }
        for i in ids
    ]
    return {
        "hlo": f"HloModule {what}, pid={os.getpid()}",
        "memory": {
            "argument_bytes": 100,
            "output_bytes": 10,
            "temporary_bytes": 5,
            "alias_bytes": 0,
            "peak_bytes": 111,
        },
        "cost": {},
        "error": "",
        "seconds": 0.5,
        "order": request["order"],
        "notes": [],
        "devices": devices,
        "peak": "",
        "usage": "",
        "versions": {"environment": os.environ.get("XLA_FLAGS", "")},
    }


if __name__ == "__main__":
    from workbench.aot.worker import serve

    idle = float(sys.argv[1]) if len(sys.argv) > 2 else 900.0
    serve(compile_as_ordered, Path(sys.argv[-1]), idle_seconds=idle)
