"""A program's plan: the traced program as stages, its evaluation in chunks of clients, and its description."""

from workbench.plan._chunk_size import choose_chunk_size as choose_chunk_size
from workbench.plan._count import (
    EquationWork as EquationWork,
    count_jaxpr as count_jaxpr,
    count_jaxpr_work as count_jaxpr_work,
    walk_jaxpr_work as walk_jaxpr_work,
)
from workbench.plan._describe import describe_plan as describe_plan
from workbench.plan._evaluate import (
    ChunkSize as ChunkSize,
    Traced as Traced,
    evaluate as evaluate,
    resolve_chunk_size as resolve_chunk_size,
)
from workbench.plan._jit import Jitted as Jitted, call_staged as call_staged, jit as jit, trace as trace
from workbench.plan._listen import Heard as Heard, HeardValue as HeardValue, listen as listen
from workbench.plan._phases import Phase as Phase, find_phases as find_phases
from workbench.plan._plan import Plan as Plan, Stage as Stage, Step as Step, plan_jaxpr as plan_jaxpr
