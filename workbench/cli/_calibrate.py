"""`workbench calibrate`: measures the devices that are here, and keeps their rates for predictions."""

from pathlib import Path

from workbench.errors import CommandError
from workbench.measurement import calibrate
from workbench.render.units import seconds_text


def write_calibration(out: Path | None, *, seconds: float) -> int:
    """Calibrates the attached devices, prints the rates, and writes them to a file if one is named.

    Args:
        out: A JSON file for colleagues; None: keep the rates on this machine alone.
        seconds: How long to measure.

    Returns:
        0, the exit status of the command.

    Raises:
        CommandError: if the file cannot be written.
    """
    if out is not None and out.suffix != ".json":
        message = (
            f"`workbench calibrate` was given --out {out}. Calibrations are named by their ending `.json`: use "
            f"`--out {out.with_suffix('.json')}`."
        )
        raise CommandError(message)
    chip = calibrate(seconds=seconds)
    for rate in chip.rates:
        size = f"{rate.amount:.3g} {'FLOP' if rate.kind == 'matrix product' else 'B'}" if rate.amount else ""
        name = " ".join(filter(None, (rate.kind, rate.dtype, rate.axis, size)))
        print(f"{name:42} {seconds_text(rate.seconds):>10}  ±{rate.spread / 2:.0%} ({rate.runs} runs)")
    print(f'{chip.source}. Name the devices with on="here".')
    if out is not None:
        try:
            out.write_text(chip.to_json(indent=1), encoding="utf-8")
        except OSError as error:
            message = (
                f"`workbench calibrate` was given --out {out}, which cannot be written ({error.strerror}). The rates "
                "are kept on this machine all the same: name a file in a folder that you may write to."
            )
            raise CommandError(message) from error
        print(f'wrote {out.resolve()}: name it as on="{out}"')
    return 0
