"""`workbench calibrate`: measures the attached devices, and stores rates for predictions."""

from pathlib import Path

from workbench.errors import CommandError
from workbench.measurement import calibrate
from workbench.render.units import seconds_text, share_text


def write_calibration(out: Path | None, *, seconds: float) -> int:
    """Calibrates the attached devices, prints the rates, and optionally writes them to a file."""
    if out is not None and out.suffix != ".json":
        message = (
            f"`workbench calibrate` was given --out {out}. A calibration file has the suffix `.json`: use "
            f"`--out {out.with_suffix('.json')}`."
        )
        raise CommandError(message)
    chip = calibrate(seconds=seconds)
    for rate in chip.rates:
        size = f"{rate.amount:.3g} {'FLOP' if rate.kind == 'matrix product' else 'B'}" if rate.amount else ""
        name = " ".join(filter(None, (rate.kind, rate.dtype, rate.axis, size)))
        print(f"{name:42} {seconds_text(rate.seconds):>10}  ±{share_text(rate.spread / 2, 0)} ({rate.runs} runs)")
    print(f'{chip.source}. Refer to the devices with on="here".')
    if out is not None:
        try:
            out.write_text(chip.to_json(indent=1), encoding="utf-8")
        except OSError as error:
            message = (
                f"`workbench calibrate` was given --out {out}, which cannot be written ({error.strerror}). The rates "
                "were saved on this machine anyway. To save them in a file as well, choose a writable folder."
            )
            raise CommandError(message) from error
        print(f'wrote {out.resolve()}: refer to it with on="{out}"')
    return 0
