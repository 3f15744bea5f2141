"""Time and memory of simulated rounds by number of clients: `python -m benchmarks.population`.

Memory must not grow with the number of clients, and 10⁸ clients × 1,000 rounds must take less than a minute on two
cores. Every case runs in a separate process, which has its own peak of memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

CASES = [(clients, schedule) for schedule in ("synchronous", "buffered") for clients in (10**4, 10**6, 10**8)]


def measure(clients: int, schedule: str, rounds: int) -> dict[str, float | int | str]:
    """One case in this process."""
    from workbench.federated.population import Buffered, Population, Synchronous, simulate
    from workbench.records.run import WorkRecord

    cohort = 1000 if clients > 10**4 else 100
    work = WorkRecord(flops=1e11, download_bytes=5e6, upload_bytes=5e6)
    kind = Synchronous(cohort=cohort) if schedule == "synchronous" else Buffered(cohort * 13 // 10, cohort)
    start, cpu = time.perf_counter(), time.process_time()
    record = simulate(Population(clients), work, kind, rounds=rounds).record
    return {
        "clients": clients,
        "schedule": schedule,
        "cohort": cohort,
        "rounds": rounds,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "virtual_hours": record.seconds / 3600,
    }


def main() -> None:
    """Prints a row per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(int(options.case[0]), options.case[1], options.rounds)))
        return
    for clients, schedule in CASES:
        case = ["--case", str(clients), schedule, "--rounds", str(options.rounds)]
        command = [sys.executable, "-m", "benchmarks.population", *case]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        print(
            "  ".join(
                f"{name} {value:,.1f}" if isinstance(value, float) else f"{name} {value}"
                for name, value in found.items()
            )
        )


if __name__ == "__main__":
    main()
