"""Planned costs of a program with other specs, for the rules that try them."""

from workbench.advice._module import Compiled
from workbench.advice._search._program import Priced, SearchProgram
from workbench.errors import WorkbenchError
from workbench.render.units import bytes_text, share_text


def planned_base(program: Compiled) -> tuple[SearchProgram | None, Priced | None]:
    """The planned cost of the unchanged program, with the specs its arguments have after compilation."""
    planner, inputs = program.planner, program.record.inputs
    if planner is None or inputs is None or len(inputs.leaves) != len(planner.leaves):
        return None, None
    specs = []
    for group in planner.groups:
        leaf = inputs.leaves[group.leaves[0]]
        spec = tuple(tuple(axes) for axes in leaf.spec)
        spec = (*spec, *[()] * (len(group.shape) - len(spec)))
        specs.append(spec if divides(spec, group.shape, planner) else ((),) * len(group.shape))
    return planner, plan_with(planner, tuple(specs))


def planned_bytes(program: Compiled, before: float, after: float) -> str:
    """Planned bytes before and after, or only their ratio if the length of a loop is unknown."""
    if all(collective.executions is not None for collective in program.module.collectives):
        return f"planned: one device sends {bytes_text(before)} per call now, and {bytes_text(after)} after the change"
    saved = share_text(1 - after / before if before else 0.0, 0)
    return f"planned: one device sends {saved} fewer bytes; the length of a loop is unknown"


def plan_with(planner: SearchProgram, specs: tuple, *, without: tuple[int, ...] = ()) -> Priced | None:
    """The planned cost with other specs, or without some of the constraints; None if Shardy rejects the program."""
    try:
        return planner.plan(specs, without=without)
    except WorkbenchError:
        return None


def divides(spec: tuple[tuple[str, ...], ...], shape: tuple[int, ...], planner: SearchProgram) -> bool:
    """Returns whether a spec shards a shape evenly."""
    return planner.allows(spec, shape)
