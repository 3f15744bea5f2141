"""Runs every check that needs a real accelerator: about five minutes on one host, without a network.

    python -m benchmarks.on_device                  # prints passed, differs or not possible here; writes on-device.zip
    python -m benchmarks.on_device --seconds 1      # a smoke test that calibrates only calls

The checks are: calibration; memory statistics against the predicted peak; recording, opening and joining a profile; the
monitor against the vendor's tool; a program compiled for the absent chip against the attached chip; the data that reach
the live explorer; rounds against the best hand-written form. A failed check does not stop the other checks. The file
contains the recording of `workbench record`, the calibration, the compiled texts and the answers. It can be kept as a
test fixture.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

import workbench as wb

CLIENTS = 8
Verdict = Literal["passed", "differs", "not possible here", "failed"]


@dataclass(slots=True)
class Answer:
    """The outcome of one check."""

    verdict: Verdict
    text: str
    figures: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict, repr=False)  # for the zip file


def compared(measured: float, predicted: float, within: float, what: str, **figures: Any) -> Answer:
    """Passed if `measured` is within a share of `predicted`."""
    off = measured / predicted - 1 if predicted else math.inf
    text = f"{what}: {measured:.6g} against {predicted:.6g} ({100 * off:+.1f} %)"
    return Answer(
        "passed" if abs(off) <= within else "differs", text, {"measured": measured, "predicted": predicted, **figures}
    )


# ---- programs


def step(params: Any, batch: jax.Array) -> Any:
    """One step of gradient descent of four layers."""

    def loss(params: Any) -> jax.Array:
        x = batch
        for w in params:
            x = jnp.tanh(x @ w)
        return (x.astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


def arguments(width: int) -> tuple[list[jax.Array], jax.Array]:
    return [jnp.full((width, width), 0.01, jnp.bfloat16) for _ in range(4)], jnp.ones((width, width), jnp.bfloat16)


def width() -> int:
    return 256 if jax.default_backend() == "cpu" else 4096


# ---- checks


def calibration(seconds: float) -> Answer:
    begin = time.monotonic()
    kinds = ("call",) if seconds <= 1 else None
    chip = wb.calibrate(seconds=seconds, kinds=kinds, store=False, progress=sys.stderr.isatty())
    spread = statistics.median(rate.spread for rate in chip.rates)
    text = f"{len(chip.rates)} rates in {time.monotonic() - begin:.0f} s, median spread {100 * spread:.1f} %"
    peaks = {name: f"{rate:.4g}" for name, rate in chip.peak_flops_per_second.items()}
    return Answer(
        "passed" if chip.rates else "differs", text,
        {"peaks": peaks, "bytes_per_second": chip.hbm_bytes_per_second}, {"calibration.json": chip.to_json(indent=1)},
    )  # fmt: skip


def memory() -> Answer:
    """Compares the peak of bytes in use during a call with the compiled module's peak."""
    device = jax.devices()[0]
    before = device.memory_stats()
    if not before or "peak_bytes_in_use" not in before:
        return Answer("not possible here", f"{device.platform} devices report no peak memory")
    args = jax.block_until_ready(arguments(2 * width()))
    record = wb.inspect(step)(*args)
    assert record.module is not None
    at_rest = device.memory_stats() or {}
    jax.block_until_ready(jax.jit(step)(*args))
    after = device.memory_stats() or {}
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(args))
    measured = after["peak_bytes_in_use"] - at_rest["bytes_in_use"] + held
    figures = {"before": before, "at_rest": at_rest, "after": after}
    return compared(measured, float(record.module.memory.peak_bytes or 0), 0.1, "bytes at the peak", **figures)


def recording(folder: Path) -> Answer:
    from workbench.cli import main as command
    from workbench.records.profile import ProfileRecord

    path = folder / "recording.zip"
    command(["record", "--out", str(path)])
    with zipfile.ZipFile(path) as archive:
        profile = ProfileRecord.from_json(archive.read("summary.json").decode())
    share = f"{100 * profile.joined:.1f} % of the events and {100 * profile.joined_seconds:.1f} % of the seconds joined"
    is_joined = min(profile.joined, profile.joined_seconds) >= 0.95
    return Answer(
        "passed" if is_joined else "differs", share, {"unjoined": [str(each) for each in profile.unjoined[:20]]}
    )


VENDORS: dict[str, tuple[str, ...]] = {
    "gpu": ("nvidia-smi", "--query-gpu=memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits"),
    "tpu": ("tpu-info",),
}  # fmt: skip


def monitor() -> Answer:
    """Compares the monitor's sample during a program with the answer of the vendor's tool."""
    platform = jax.default_backend()
    tool = VENDORS.get(platform, ("",))
    if shutil.which(tool[0]) is None:
        return Answer("not possible here", f"no vendor tool for {platform} devices is installed")
    run, args = jax.jit(step), arguments(width())
    with wb.watch_devices(0.2) as watching:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            jax.block_until_ready(run(*args))
        said = subprocess.run(tool, capture_output=True, text=True, timeout=60, check=False).stdout
        sample = watching.latest()
    ours = [device.to_dict() for device in sample.devices]
    figures = {"vendor": said, "monitor": ours}
    if platform != "gpu" or not said.strip():
        return Answer("differs", "compare both answers by hand: they are in the file", figures)
    total = float(said.splitlines()[0].split(",")[1]) * 2**20
    limit = float(ours[0]["limit_bytes"] or math.nan)
    busy = ours[0]["utilisation_percent"]
    answer = compared(limit, total, 0.3, "bytes of memory (JAX takes a share of them)", **figures)
    answer.text += f"; utilisation {busy} % here, {said.splitlines()[0].split(',')[2].strip()} % there"
    return answer


def absent() -> Answer:
    """Compares the program compiled ahead of time for the chip with the program on the attached chip."""
    from workbench.aot import known_chip, list_targets
    from workbench.errors import WorkbenchError

    device = jax.devices()[0]
    try:
        chip = known_chip(device.device_kind)
    except WorkbenchError:
        chip = None
    targets = [each for each in list_targets() if chip is not None and each.chip.lower() == chip.name.lower()]
    if not targets or not targets[0].installed:
        return Answer("not possible here", f"{device.device_kind} is not a target with an installed compiler")
    one = next(name for name in targets[0].topologies if math.prod(map(int, name.split("x"))) == 1)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments(width()))
    here, there = wb.inspect(step)(*shapes), wb.inspect(step, on=f"{targets[0].chip}:{one}")(*shapes)
    assert here.module is not None
    assert there.module is not None
    rows = {"FLOPs": (there.module.flops, here.module.flops),
            "peak": (there.module.memory.peak_bytes, here.module.memory.peak_bytes),
            "instructions": (len(there.module.instructions), len(here.module.instructions))}  # fmt: skip
    off = {name: (a or 0) / (b or 1) - 1 for name, (a, b) in rows.items()}
    text = ", ".join(f"{name} {100 * value:+.1f} %" for name, value in off.items())
    is_equal = abs(off["FLOPs"]) < 0.01 and abs(off["peak"]) < 0.05
    return Answer("passed" if is_equal else "differs", f"absent over present: {text}", {"absent, present": rows})


def live_feed() -> Answer:
    """Samples and loss values that reach the explorer while a watched loop runs."""
    samples: list[Any] = []
    watched = wb.watch(step)
    args = arguments(width())
    with wb.watch_devices(0.1) as watching:
        watching.subscribe(samples.append)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            jax.block_until_ready(watched(*args))
    with_memory = sum(device.bytes_in_use is not None for sample in samples for device in sample.devices)
    text = f"{len(samples)} samples in 2 s, {with_memory} figures of memory"
    return Answer("passed" if len(samples) >= 5 and with_memory else "differs", text)


def rounds() -> Answer:
    """Compares a round of federated averaging with `jit(vmap)`, interleaved."""
    from benchmarks.rounds import mlp
    from workbench.advice._search._run import median_interval

    params, data, train = mlp(CLIENTS)

    @wb.program(clients=CLIENTS)
    def ours(params: Any, data: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))

    def by_hand(params: Any, data: Any) -> Any:
        return jax.tree.map(lambda x: x.mean(0), jax.vmap(train, in_axes=(None, 0))(params, data))

    compiled = [wb.jit(ours), jax.jit(by_hand)]
    walls: list[list[float]] = [[], []]
    for turn in range(21):
        for own, fn in list(zip(walls, compiled, strict=True))[:: 1 if turn % 2 else -1]:
            begin = time.perf_counter()
            jax.block_until_ready(fn(params, data))
            own.append(time.perf_counter() - begin)
    ratio = median_interval([a / b for a, b in zip(walls[0][1:], walls[1][1:], strict=True)])
    text = f"{ratio.median:.2f} × the time of jit(vmap), 95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
    return Answer("passed" if ratio.low <= 1.1 else "differs", text, {"workbench": walls[0], "by hand": walls[1]})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="time for the calibration in seconds, without compilation"
    )
    parser.add_argument("--out", type=Path, default=Path("on-device.zip"))
    given = parser.parse_args(arguments)
    folder = given.out.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    checks: dict[str, Callable[[], Answer]] = {
        "memory": memory, "recording": lambda: recording(folder), "monitor": monitor, "absent chip": absent,
        "live feed": live_feed, "rounds": rounds, "calibration": lambda: calibration(given.seconds),
    }  # fmt: skip
    device, begin = jax.devices()[0], time.monotonic()
    print(f"{len(jax.devices())} × {device.device_kind} ({device.platform}), JAX {jax.__version__}", flush=True)
    answers: dict[str, Answer] = {}
    for name, check in checks.items():
        try:
            answers[name] = check()
        except Exception as error:  # one check that fails is an answer too
            answers[name] = Answer("failed", f"{type(error).__name__}: {error}", {"traceback": traceback.format_exc()})
        print(f"{name:12} {answers[name].verdict}: {answers[name].text}", flush=True)
    about = {
        "jax": jax.__version__,
        "devices": [str(each) for each in jax.devices()],
        "seconds": time.monotonic() - begin,
    }
    report = {**about, **{name: {"verdict": a.verdict, "text": a.text, **a.figures} for name, a in answers.items()}}
    recorded = folder / "recording.zip"
    with zipfile.ZipFile(given.out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("report.json", json.dumps(report, indent=1, default=str))
        for answer in answers.values():
            for name, text in answer.files.items():
                archive.writestr(name, text)
        if recorded.exists():
            archive.write(recorded, recorded.name)
    recorded.unlink(missing_ok=True)
    print(f"wrote {given.out} in {report['seconds']:.0f} s")
    return sum(answer.verdict == "failed" for answer in answers.values())


if __name__ == "__main__":
    sys.exit(main())
