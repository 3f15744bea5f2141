"""A program's plan: its stages, its evaluation in chunks of clients, and its description."""

from workbench.plan._arguments import check_call as check_call, nesting_problem as nesting_problem
from workbench.plan._choices import choose_loop as choose_loop
from workbench.plan._chunk_size import (
    ChunkSize as ChunkSize,
    check_chunk_size as check_chunk_size,
    choose_chunk_size as choose_chunk_size,
)
from workbench.plan._client_loop import ClientLoop as ClientLoop
from workbench.plan._compile import jit as jit
from workbench.plan._count import main_product as main_product, walk_jaxpr_work as walk_jaxpr_work
from workbench.plan._describe import describe_plan as describe_plan
from workbench.plan._evaluate import (
    PlannedCall as PlannedCall,
    evaluate as evaluate,
)
from workbench.plan._inline import holds_clients as holds_clients
from workbench.plan._interpreter import (
    Cond as Cond,
    ControlFlow as ControlFlow,
    InnerCall as InnerCall,
    Interpreter as Interpreter,
    PythonInterpreter as PythonInterpreter,
    Scan as Scan,
    While as While,
    control_flow as control_flow,
)
from workbench.plan._jit import Jitted as Jitted, trace as trace
from workbench.plan._listen import deliver as deliver, listen as listen, listeners as listeners
from workbench.plan._loop_form import LoopForm as LoopForm
from workbench.plan._phases import Phase as Phase, find_phases as find_phases
from workbench.plan._plan import (
    Plan as Plan,
    Step as Step,
    is_user_file as is_user_file,
    loop_bodies as loop_bodies,
    plan_jaxpr as plan_jaxpr,
    source_line as source_line,
)
from workbench.plan._reductions import REDUCTION_OF as REDUCTION_OF
from workbench.plan._tune import TunedJitted as TunedJitted
from workbench.plan._windows import valid_positions as valid_positions
