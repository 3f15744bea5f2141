"""Source lines of a program in a chip's roofline; the cost view draws them as dots."""

from collections.abc import Mapping

from workbench.cost import CHIPS, InstructionTime, product_peak, time_module
from workbench.records.compiled import InstructionRecord, ModuleRecord
from workbench.records.hardware import ChipRecord
from workbench.render.units import source_text
from workbench_widgets.states import ChipRoofs, LinesRoofline, RooflineDot

ASSUMED = "v5e"  # chip to use if a program has none
MOST_LINES = 200


def roofline_state(module: ModuleRecord | None, chip: ChipRecord | None) -> LinesRoofline | None:
    """One dot per source line with matrix products: FLOPs per byte, FLOP/s, and predicted time per call."""
    if module is None:
        return None
    on = chip or CHIPS[ASSUMED]
    times = time_module(module, on)
    lines: dict[str, RooflineDot] = {}
    for instruction in module.instructions:
        if instruction.fused or not instruction.executions or not (instruction.flops or instruction.accessed_bytes):
            continue
        time = times.get(instruction.name)
        if time is not None and time.is_collective:
            continue  # its bytes without its time would lift the line's dot above the roof
        seconds = 0.0 if time is None else instruction.executions * (time.seconds or 0.0)
        _add(lines.setdefault(_key(instruction), _line(instruction)), instruction, seconds)
    rows = sorted(lines.values(), key=lambda line: -line["seconds"])
    dots = [line for line in rows if line["flops"] > 0 and line["bytes"] > 0]
    if not dots:
        return None
    total = sum(line["seconds"] for line in rows)
    roofs = chip_roofs(on)
    peaks = {dot["dtype"]: product_peak(dot["dtype"], on) or 0.0 for dot in dots}  # dtype of most of the products
    return {
        "chip": {**roofs, "peaks": peaks},
        "assumed": chip is None,
        "seconds": total,
        "communication": _communication_seconds(module, times),
        "dots": dots[:MOST_LINES],
        "without_products": (len(rows) - len(dots), (total - sum(dot["seconds"] for dot in dots)) / total),
    }


def _communication_seconds(module: ModuleRecord, times: Mapping[str, InstructionTime]) -> float | None:
    """The time that collectives add to a call in seconds; None if the time of any collective is unknown."""
    total = 0.0
    for instruction in module.instructions:
        time = times.get(instruction.name)
        if time is None or not time.is_collective:
            continue
        if time.seconds is None or instruction.executions is None:
            return None
        total += instruction.executions * time.seconds
    return total


def chip_roofs(chip: ChipRecord) -> ChipRoofs:
    """The rooflines of one device: a slope for memory bandwidth and a ceiling for each dtype."""
    shared = chip.devices_per_chip
    return {
        "name": chip.name,
        "bandwidth": chip.hbm_bytes_per_second / shared,
        "peaks": {dtype: peak / shared for dtype, peak in chip.peak_flops_per_second.items()},
        "source": chip.source,
    }


def stage_roofs(chip: ChipRecord) -> ChipRoofs:
    """The rooflines for stages, whose products have several dtypes: bfloat16, else float32, else the fastest dtype."""
    roofs = chip_roofs(chip)
    peaks = roofs["peaks"]
    dtype = next((name for name in ("bfloat16", "float32") if name in peaks), max(peaks, key=lambda name: peaks[name]))
    return {**roofs, "peaks": {dtype: peaks[dtype]}}


def _key(instruction: InstructionRecord) -> str:
    return instruction.opcode if instruction.source is None else f"{instruction.source.file}:{instruction.source.line}"


def _line(instruction: InstructionRecord) -> RooflineDot:
    named = instruction.source is not None
    place = (
        source_text(instruction.source.file, instruction.source.line)
        if instruction.source is not None
        else instruction.opcode
    )
    line = _key(instruction) if named else None
    return {"place": place, "line": line, "instruction": instruction.name, "flops": 0.0, "bytes": 0.0, "seconds": 0.0,
            "dtype": "", "most": 0.0}  # fmt: skip


def _add(line: RooflineDot, instruction: InstructionRecord, seconds: float) -> None:
    executions = instruction.executions or 0.0
    line["flops"] += executions * instruction.flops
    line["bytes"] += executions * instruction.accessed_bytes
    line["seconds"] += seconds
    if instruction.flops and seconds >= line["most"]:  # the instruction that a click selects and whose peak applies
        product = max(instruction.products, key=lambda key: instruction.products[key], default="") or "bfloat16"
        line.update(most=seconds, instruction=instruction.name, dtype=product)
