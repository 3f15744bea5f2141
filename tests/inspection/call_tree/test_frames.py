"""Stacks as XLA joins them, cut to the user's own calls."""

import pytest

from workbench.inspection._call_tree._frames import Frame, below_outer, shown_file, split_stack, trim
from workbench.inspection._call_tree._op_names import read_op_name

HELPER = ("step", "helper")


def stack(text: str) -> tuple[Frame, ...]:
    parts = (part.split(":") for part in text.split())
    return tuple(Frame("train.py", name, int(line)) for name, line in parts)


def shown(frames: tuple[Frame, ...]) -> str:
    return " ".join(f"{frame.function}:{frame.line}" for frame in frames)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("<module>:9 step:3 run:4 layer:1", "step:3 run:4 layer:1"),
        ("<module>:9 main:2 step:3 layer:1", "step:3 layer:1"),
        # an inlined body repeats the stack of its caller
        ("<module>:9 step:3 run:4 <module>:9 step:3 run:4 layer:1", "step:3 run:4 layer:1"),
        ("<module>:9 step:3 run:4 step:3 run:4 layer:1", "step:3 run:4 layer:1"),
        ("<module>:9 step:3 loop:4 body:5 loop:4 body:5", "step:3 loop:4 body:5"),
        # a function that was traced for its first caller, called at another line: the caller's line is meant
        ("<module>:9 main:2 step:8 run:4 <module>:9 main:2 step:3 run:4 layer:1", "step:8 run:4 layer:1"),
        # a function that was traced for another program
        ("<module>:9 main:2 step:3 main:2 other:7", "step:3"),
        ("<module>:9 main:2 step:3 main:2 other:7 helper:4", "step:3 helper:4"),
        ("<module>:9 main:2 step:3 main:2 other:7 Model.helper:4", "step:3 Model.helper:4"),
        # frames of a launcher above the program
        ("launch:1 <module>:9 main:2 step:3 run:4", "step:3 run:4"),
        ("launch:1 start:2 step:3 run:4", "step:3 run:4"),
        # the program's own function is not in it
        ("<module>:9 main:2 client:5 client:5 inner:6", "client:5 inner:6"),
    ],
)
def test_every_call_appears_once_below_the_program(given, expected):
    outer = frozenset({("train.py", "main")})
    assert shown(trim(stack(given), "step", outer, HELPER)) == expected


def test_stack_without_outer_frames_is_kept_whole():
    frames = stack("step:3 run:4 layer:1")
    assert below_outer(frames, frozenset()) == frames


def test_frames_of_libraries_below_the_users_line_are_kept_apart():
    library = Frame("/venv/lib/python3.11/site-packages/flax/nnx/nn/linear.py", "Linear.__call__", 431)
    user = Frame("train.py", "step", 3)
    assert split_stack((user, library)) == ((user,), (library,))


def test_the_library_of_the_program_counts_as_the_users_code():
    library = Frame("/venv/lib/python3.11/site-packages/maxtext/train.py", "train_step", 10)
    assert split_stack((library,), "maxtext") == ((library,), ())


def test_a_cell_of_another_kernel_is_never_called_by_its_temporary_file():
    assert shown_file("/tmp/ipykernel_17/2354311.py") == "In [ ]"


@pytest.mark.parametrize(
    ("op_name", "scopes", "operation", "pass_name"),
    [
        ("jit(step)/jvp(Net)/layers_0/dot_general", ("Net", "layers_0"), "dot_general", "forward"),
        ("jit(step)/transpose(jvp(Net))/layers_0/dot_general", ("Net", "layers_0"), "dot_general", "transpose"),
        ("jit(f)/transpose(jvp())/while/body/closed_call/checkpoint/rematted_computation/mlp/tanh", ("while", "mlp"),
         "tanh", "remat"),
        ("jit(f)/jvp(vmap(eqx.nn.MLP))/eqx.nn.Linear/add", ("eqx.nn.MLP", "eqx.nn.Linear"), "add", "forward"),
        ("jit(f)/jvp(vmap(BTNH,BSNH->BNTS))/dot_general", (), "dot_general", "forward"),
        ("jit(f)/vmap(Net/layers_0)/mul", ("Net", "layers_0"), "mul", "forward"),
        ("jit(f)/jvp()/cond/branch_1_fun/mul", ("cond",), "mul", "forward"),
        ("jit(f)/shard_map/psum", ("shard_map",), "psum", "forward"),
        ("jit(f)/mlp/jit(g)", ("mlp",), "jit(g)", "forward"),
        ("jit(f)/while/body/vmap(mul)", ("while",), "mul", "forward"),
        ("jit(f)/shard_map/wb:1:clients/wb:1:clients/vmap()/mul", (), "mul", "forward"),
        ("jit(f)/shard_map/wb:1:clients/mlp/mul", ("mlp",), "mul", "forward"),
        ("jit(f)/transpose(jvp(shard_map))/wb:1:clients/mul", (), "mul", "transpose"),
        ("jit(f)/wb:2.0:clients/mul;jit(f)/add", (), "mul", "forward"),
    ],
)  # fmt: skip
def test_a_name_stack_is_scopes_operation_and_pass(op_name, scopes, operation, pass_name):
    assert read_op_name(op_name) == (scopes, operation, pass_name)
