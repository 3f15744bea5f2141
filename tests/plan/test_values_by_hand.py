"""Interpreters, emitted values, listeners, reductions and refusals: every value derived by hand."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import workbench as wb
from workbench.errors import InspectionError, ProgramError
from workbench.plan import (
    REDUCTION_OF,
    Interpreter,
    LoopForm,
    PythonInterpreter,
    check_call,
    control_flow,
    deliver,
    listen,
    nesting_problem,
    trace,
)
from workbench.plan._alike import AlikeRows
from workbench.plan._emissions import Emission, _below_loop, with_emissions
from workbench.plan._jit import _argument_name
from workbench.plan._reductions import accumulator_of
from workbench.primitives import program
from workbench.records.program import PlanChoiceRecord

pytestmark = pytest.mark.usefixtures("little_optimized")
CHOICE = PlanChoiceRecord(
    program="f", chunk_size=4, spread="vmap", kept_bytes=10, unroll=2, source="given", why="by hand"
)


def s(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


# ---- interpreters


def forwards(a: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (c * 2 + x + a, (c, x - a)), a, xs)


def backwards(a: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (c * 2 + x + a, (c, x - a)), a, xs, reverse=True, unroll=2)


def doubling(a: Any, xs: Any) -> Any:
    """Two constants of the condition, one of the body, and two carried values."""
    return lax.while_loop(lambda c: c[1] < xs[0] + a, lambda c: (c[0] + 1, c[1] * 2 + xs[1]), (jnp.int32(0), a))


def branching(index: int) -> Any:
    def fn(a: Any, xs: Any) -> Any:
        return lax.switch(index + a.astype("int32"), [lambda x: x[0], lambda x: x[1] * 10, lambda x: x[2] + 100], xs)

    return fn


def calling(a: Any, xs: Any) -> Any:
    @jax.custom_jvp
    def own(x: Any) -> Any:
        return x + 3

    own.defjvp(lambda x, t: (own(*x), t[0]))
    return jax.jit(jax.checkpoint(lambda x: own(x) * a))(xs)


A, XS = jnp.float32(1), jnp.array([5.0, 7.0, 11.0])
# forwards: 1 → 2 + 5 + 1 = 8 → 16 + 7 + 1 = 24 → 48 + 11 + 1 = 60; backwards: 1 → 14 → 36 → 78
PROGRAMS: list[tuple[Any, Any]] = [
    (forwards, [60.0, [1.0, 8.0, 24.0], [4.0, 6.0, 10.0]]),
    (backwards, [78.0, [36.0, 14.0, 1.0], [4.0, 6.0, 10.0]]),
    (doubling, [1, 9.0]),  # 1 < 6, then 2 · 1 + 7 = 9
    (branching(-9), [5.0]),
    (branching(-1), [5.0]),
    (branching(0), [70.0]),
    (branching(1), [111.0]),
    (branching(9), [111.0]),
    (calling, [[8.0, 10.0, 14.0]]),
    (lambda a, xs: lax.scan(lambda c, x: (c + x, x * a), a, xs[:0]), [1.0, []]),
]


@pytest.mark.parametrize(("fn", "expected"), PROGRAMS, ids=range(len(PROGRAMS)))
@pytest.mark.parametrize("interpreter", [Interpreter, PythonInterpreter])
def test_interpreters_compute_what_jax_computes(interpreter: Any, fn: Any, expected: Any) -> None:
    closed = jax.make_jaxpr(fn)(A, XS)
    found = interpreter().run(closed, [A, XS])
    assert [np.asarray(value).tolist() for value in found] == expected


def test_traced_loops_keep_their_length_direction_and_unrolling() -> None:
    for fn in (forwards, backwards):
        closed = jax.make_jaxpr(fn)(A, XS)
        again = jax.make_jaxpr(lambda *values: Interpreter().run(closed, values))(A, XS)  # noqa: B023
        loops = [next(e for e in jaxpr.eqns if e.primitive.name == "scan") for jaxpr in (closed, again)]
        names = "length", "reverse", "unroll"
        assert [loops[0].params[name] for name in names] == [loops[1].params[name] for name in names]


def flow_of(fn: Any, *args: Any) -> Any:
    return next(flow for e in jax.make_jaxpr(fn)(*args).eqns if (flow := control_flow(e)) is not None)


def test_operands_of_loops_and_branches() -> None:
    loop = flow_of(lambda a, b, xs: lax.scan(lambda c, x: ((c[0] + a * b, c[1] + x), c[0]), (a, b), (xs)), A, A, XS)
    assert (loop.consts, loop.carries, loop.length, loop.reverse, loop.offset) == (2, 2, 3, False, 0)
    assert loop.split("abcde") == (["a", "b"], ["c", "d"], ["e"])
    assert list(loop.iterations) == [0, 1, 2]
    assert list(flow_of(backwards, A, XS).iterations) == [2, 1, 0]
    until = flow_of(doubling, A, XS)
    counts = len(until.split(range(9))[0]), until.consts, until.carries, until.offset
    assert counts == (until.equation.params["cond_nconsts"], until.equation.params["body_nconsts"], 2, counts[0])
    assert until.split("abcdef"[: counts[0] + counts[1] + 2])[2] == list("abcdef"[counts[0] + counts[1] :][:2])
    branch = flow_of(branching(0), A, XS)
    assert (branch.offset, branch.split("abc"), len(branch.bodies)) == (1, ("a", ["b", "c"]), 3)
    assert [branch.taken(index) for index in (-2, 0, 1, 2, 3)] == [0, 0, 1, 2, 2]
    call = flow_of(jax.jit(lambda x: x + 1), A)
    assert (call.offset, len(call.bodies)) == (0, 1)
    assert control_flow(jax.make_jaxpr(lambda x: x + 1)(A).eqns[0]) is None


def test_python_loops_are_numbered_and_their_parts_named() -> None:
    class Noted(PythonInterpreter):
        def __init__(self) -> None:
            self.numbers: list[int] = []
            self.parts: list[str] = []

        def iteration(self, flow: Any, number: int, operands: Any) -> list[Any]:
            self.numbers.append(number)
            return super().iteration(flow, number, operands)

        def body(self, flow: Any, closed: Any, operands: Any, part: str = "") -> list[Any]:
            self.parts.append(part)
            return super().body(flow, closed, operands, part)

    def noted(fn: Any) -> Noted:
        interpreter = Noted()
        interpreter.run(jax.make_jaxpr(fn)(A, XS), [A, XS])
        return interpreter

    assert [noted(fn).numbers for fn in (forwards, backwards, doubling)] == [[0, 1, 2], [2, 1, 0], [0]]
    assert noted(doubling).parts == ["?", "", "?"]
    assert "[2]" in noted(branching(1)).parts


# ---- emitted values


@pytest.mark.parametrize(
    ("axes", "outer"),
    [
        ((), ("step",)), (("step",), ("step", "step 2")), (("step", "step 2"), ("step", "step 2", "step 3")),
        (("clients",), ("round", "clients")), (("clients", "step"), ("round", "clients", "step")),
        (("round", "clients", "step"), ("round", "round 2", "clients", "step")),
        (("round", "round 2", "pods"), ("round", "round 2", "round 3", "pods")),
    ],
)  # fmt: skip
def test_a_loop_around_clients_counts_rounds_and_inside_of_a_client_steps(axes: Any, outer: Any) -> None:
    assert _below_loop(axes) == outer


def emitted(fn: Any, *args: Any) -> tuple[list[Any], dict[str, tuple[tuple[str, ...], Any]]]:
    """The results of a program, and its emitted values by name, each with its axes."""
    closed = jax.make_jaxpr(fn)(*args)
    collected, emissions = with_emissions(closed, "fn")
    values = jax.extend.core.jaxpr_as_fun(collected)(*args)
    count = len(closed.out_avals)
    pairs = zip(emissions, values[count:], strict=True)
    return [np.asarray(x).tolist() for x in values[:count]], {
        emission.name: (emission.axes, np.asarray(value).tolist()) for emission, value in pairs
    }


def test_emissions_of_loops_and_branches() -> None:
    def step(c: Any, x: Any) -> Any:
        wb.emit("sum", c + x)
        return c + x, 2 * x

    def fn(a: Any, xs: Any, index: Any) -> Any:
        last, twice = lax.scan(step, a, xs, reverse=True)
        wb.emit("last", last)

        def branch(number: int) -> Any:
            def of(x: Any) -> Any:
                wb.emit(f"real {number}", x[number])
                wb.emit(f"whole {number}", x[number].astype("int32"))
                return x[number]

            return of

        return last, twice, lax.switch(index, [branch(0), branch(1), lambda x: x[2]], xs)

    results, found = emitted(fn, A, XS, jnp.int32(1))
    assert results == [24.0, [10.0, 14.0, 22.0], 7.0]
    assert found.pop("sum") == (("step",), [24.0, 19.0, 12.0])
    assert found.pop("last") == ((), 24.0)
    assert math.isnan(found.pop("real 0")[1])
    assert found == {"whole 0": ((), 0), "real 1": ((), 7.0), "whole 1": ((), 7)}


def test_emissions_of_clients_have_their_axis_first() -> None:
    @program(clients=3)
    def fn(xs: Any) -> Any:
        def client(x: Any) -> Any:
            wb.emit("twice", 2 * x)
            return lax.fori_loop(0, 2, lambda i, c: wb.emit("at", c + i) or c + 1.0, x)

        return wb.reduce_sum(wb.map_fn(client, xs))

    results, found = emitted(fn, XS)
    assert results == [29.0]
    assert found == {
        "twice": (("clients",), [10.0, 14.0, 22.0]),
        "at": (("clients", "step"), [[5.0, 7.0], [7.0, 9.0], [11.0, 13.0]]),
    }


def test_a_program_that_emits_nothing_is_unchanged() -> None:
    closed = jax.make_jaxpr(forwards)(A, XS)
    assert with_emissions(closed, "fn") == (closed, ())


# ---- listeners


def emission(*axes: str, name: str = "loss") -> Emission:
    return Emission(name, axes)


def test_listeners_number_calls_and_keep_the_newest_values() -> None:
    with listen(keep=3) as first, listen() as second:
        for call in range(2):
            deliver("a", (emission(), emission(name="other")), (jnp.float32(call), jnp.float32(10 + call)))
        deliver("b", (emission("step"),), (jnp.arange(2.0),))
    facts = [(each.program, each.call, each.name, each.axes) for each in second]
    assert facts == [("a", 0, "loss", ()), ("a", 0, "other", ()), ("a", 1, "loss", ()), ("a", 1, "other", ()),
                     ("b", 0, "loss", ("step",))]  # fmt: skip
    assert (len(first), len(second)) == (3, 5)
    assert [each.call for each in first] == [1, 1, 0]
    assert (second.names, second.latest("other").tolist()) == (("loss", "other"), 11.0)
    assert first.latest("loss").tolist() == [0.0, 1.0]
    assert second.series("other").tolist() == [10.0, 11.0]
    deliver("a", (emission(),), (A,))
    assert len(second) == 5


@pytest.mark.parametrize(
    ("axes", "left", "value"),
    [
        (("clients",), (), 5), (("clients", "step"), ("step",), [15, 16, 17]), (("step",), ("step",), None),
        (("round", "clients"), ("round",), [2, 5, 8]), ((), (), None),
        (("round 2", "step 2"), ("round 2", "step 2"), None),
    ],
)  # fmt: skip
def test_the_values_of_one_client(axes: tuple[str, ...], left: tuple[str, ...], value: Any) -> None:
    """A value counts its elements: rows of 3, client 5 of 9 or client 2 of 3."""
    client = 5 if axes[:1] == ("clients",) else 2
    shape = {(): (), ("clients",): (9,), ("step",): (9,), ("clients", "step"): (9, 3)}.get(axes, (3, 3))
    whole = jnp.arange(math.prod(shape)).reshape(shape)
    with listen(client=client) as received:
        deliver("a", (emission(*axes),), (whole,))
    (captured,) = received
    assert captured.axes == left
    assert np.asarray(captured.value).tolist() == (whole.tolist() if value is None else value)


def test_a_frame_has_one_row_per_number_with_its_axes() -> None:
    with listen() as received:
        deliver("a", (emission("clients", "step"),), (jnp.arange(6.0).reshape(3, 2),))
        deliver("a", (emission(),), (jnp.float32(7),))
    rows = received.to_pandas().to_dict("records")
    assert len(rows) == 7
    assert rows[3] == {"program": "a", "call": 0, "name": "loss", "clients": 1, "step": 1, "value": 3.0}
    assert (rows[6]["call"], rows[6]["value"]) == (1, 7.0)


def test_a_name_that_was_not_captured() -> None:
    with listen() as received, pytest.raises(InspectionError) as caught:
        received.series("accuracy")
    assert str(caught.value) == (
        "`latest` was asked for 'accuracy', but the captured names are []. A program emits values with "
        '`emit("accuracy", value)`, and must be called through `workbench.jit` inside `listen`.'
    )


# ---- reductions

ROWS = np.array([[3, -1], [5, 2], [-7, 4]], np.float32)
SUMS = {"reduce_sum": lambda x: x.sum(0), "reduce_mean": lambda x: x.sum(0) / 3, "reduce_max": lambda x: x.max(0),
        "reduce_min": lambda x: x.min(0)}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("reduce_sum", "bfloat16"), ("reduce_mean", "float32"), ("reduce_max", "float32"), ("reduce_min", "int32")],
)
def test_reductions_add_rows_in_any_parts(name: str, dtype: str) -> None:
    rows = jnp.asarray(ROWS, dtype)
    fn = program(clients=3)(getattr(wb, name))
    (equation,) = [e for e in jax.make_jaxpr(fn)(rows).eqns if e.primitive in REDUCTION_OF]
    reduction = REDUCTION_OF[equation.primitive]
    start = reduction.start(equation)
    assert (start.shape, start.dtype) == (accumulator_of(equation).shape, accumulator_of(equation).dtype)
    masks = [None, np.array([False, True, True])]
    for mask in masks:
        present = ROWS if mask is None else ROWS[mask]
        whole = reduction.add(equation, start, [rows], None if mask is None else jnp.asarray(mask))
        one_by_one = start
        for number in range(3):
            one = None if mask is None else jnp.asarray(mask[number])
            one_by_one = reduction.add_one(equation, one_by_one, [rows[number]], one)
        parts = [reduction.add(equation, start, [rows[part]], None if mask is None else jnp.asarray(mask[part]))
                 for part in (slice(0, 1), slice(1, 3))]  # fmt: skip
        for total in (whole, one_by_one, reduction.merge(*parts)):
            assert total.dtype == start.dtype
            found = reduction.finish(equation, total)
            assert found.dtype == rows.dtype
            np.testing.assert_allclose(np.asarray(found, np.float32), SUMS[name](present), rtol=1e-2)


def test_sums_by_key_add_only_clients_that_are_present() -> None:
    fn = program(clients=3)(lambda x, keys: wb.reduce_by_key(x, keys, 4))
    keys = jnp.array([1, 3, 1])
    (equation,) = [e for e in jax.make_jaxpr(fn)(ROWS, keys).eqns if e.primitive in REDUCTION_OF]
    reduction = REDUCTION_OF[equation.primitive]
    rows = jnp.asarray(ROWS)
    start = reduction.start(equation)
    whole = reduction.add(equation, start, [rows, keys], None)
    assert reduction.finish(equation, whole).tolist() == [[0, 0], [-4, 3], [0, 0], [5, 2]]
    some = reduction.add(equation, start, [rows, keys], jnp.array([True, False, True]))
    assert some.tolist() == [[0, 0], [-4, 3], [0, 0], [0, 0]]
    for present, expected in ((None, [5.0, 2.0]), (True, [5.0, 2.0]), (False, [0.0, 0.0])):
        mask = None if present is None else jnp.asarray(present)
        assert reduction.add_one(equation, start, [rows[1], keys[1]], mask)[3].tolist() == expected


# ---- refused calls


def f(x: Any, y: Any = 1, *, z: Any = 2) -> Any:
    return x


SIGNATURE = "`f(x: Any, y: Any = 1, *, z: Any = 2) -> Any`"
PASS_ALL = "A call is traced with the function's own arguments: pass all of them after the function."
DELETE = (
    "Arguments must be existing arrays of known shapes. For a donated array, pass the array that the donating call "
    "returned, or a new array. For a symbolic shape, use numbers as dimensions: only `trace(fn)(...).export()` takes "
    "symbolic shapes."
)
TREE = "A pytree is a finite tree of arrays: pass the arrays themselves, or dictionaries and lists of arrays."
OPAQUE = (
    "`jax.jit` rejects such arguments too: arrays inside such an object would become constants of the program, and an "
    "iterator is used up by the first trace. Register a dataclass with `jax.tree_util.register_dataclass`, convert an "
    "iterator to a list, or pass the argument's name in `static_argnames` of `jax.jit`."
)


@dataclasses.dataclass
class Hidden:
    """May contain arrays that JAX does not see."""


def deleted() -> Any:
    x = jnp.ones((2, 3))
    x.delete()
    return x


def cyclic(kind: Any) -> Any:
    x: Any = [] if kind is list else {}
    inner = (1, x)
    x.append(inner) if kind is list else x.update(a=inner)
    return x


SYMBOLIC = s(*jax.export.symbolic_shape("n, 2"))  # type: ignore[arg-type]
GONE = " of shape (2, 3), which was deleted or donated"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, f"0 arguments for {SIGNATURE}: missing a required argument: 'x'. {PASS_ALL}"),
        ((1,), {"w": 1, "z": 2},
         f"1 argument and w, z by name for {SIGNATURE}: got an unexpected keyword argument 'w'. {PASS_ALL}"),
        ((1, 2, 3), {}, f"3 arguments for {SIGNATURE}: too many positional arguments. {PASS_ALL}"),
        ((1, {"a": [deleted()]}), {}, f"`f` and argument 1['a'][0]{GONE}. {DELETE}"),
        ((1,), {"z": deleted()}, f"`f` and argument 'z'{GONE}. {DELETE}"),
        (([deleted()] * 5, 1), {}, f"`f` and {'; '.join(f'argument 0[{i}]{GONE}' for i in range(5))}. {DELETE}"),
        (([deleted()] * 7, 1), {},
         f"`f` and {'; '.join(f'argument 0[{i}]{GONE}' for i in range(5))}; and 2 more. {DELETE}"),
        ((SYMBOLIC,), {}, f"`f` and argument 0, which has the symbolic shape (n, 2). {DELETE}"),
        ((1, cyclic(dict)), {},
         f"`f` and argument 1, which holds an object of type dict that contains itself. {TREE}"),
        ((1,), {"z": cyclic(list)},
         f"`f` and argument 'z', which holds an object of type list that contains itself. {TREE}"),
        (([Hidden(), 1, Hidden()],), {},
         f"`f` and argument 0[0], an object of type Hidden; argument 0[2], an object of type Hidden. {OPAQUE}"),
        (([Hidden()] * 6,), {},
         f"`f` and {'; '.join(f'argument 0[{i}], an object of type Hidden' for i in range(5))}. {OPAQUE}"),
        ((1,), {"y": iter([1])}, f"`f` and argument 'y', an object of type list_iterator. {OPAQUE}"),
    ],
    ids=range(13),
)  # fmt: skip
def test_calls_that_cannot_be_traced(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check_call("`trace`", f, args, kwargs)
    assert str(caught.value) == f"`trace` was given {message}"


def test_calls_that_can_be_traced() -> None:
    shared = [1]
    check_call("`trace`", f, ([shared, shared, {"a": shared}], (jnp.ones(2), 3.0, None)), {"z": s(2)})
    check_call("`trace`", f, (SYMBOLIC,), {}, symbolic=True)
    check_call("`trace`", jax.jit(f), (Hidden(),), {})  # may be a static argument
    check_call("`trace`", dict.fromkeys, ([1],), {})


def test_nesting_is_counted_from_the_argument() -> None:
    x: Any = 1
    for _ in range(500):
        x = (x,)
    assert nesting_problem(x) == ""
    assert nesting_problem([x]) == "whose containers are nested more than 500 levels deep"
    assert nesting_problem([x[0], {"a": x[0]}]) == "whose containers are nested more than 500 levels deep"
    assert nesting_problem([x[0][0], {"a": x[0][0]}]) == ""


def test_arguments_are_named_as_in_the_function() -> None:
    def names(fn: Any, *args: Any, **kwargs: Any) -> list[str]:
        paths = jax.tree_util.tree_flatten_with_path((args, kwargs))[0]
        return [_argument_name(fn, path) for path, _ in paths]

    assert names(f, [1, {"a": 2}], 3, z=(4,)) == ["x[0]", "x[1]['a']", "y", "z[0]"]
    assert names(lambda x: x, 1, 2) == ["x", "args[1]"]
    assert names(object(), [1]) == ["args[0][0]"]
    assert trace(f, (A, {"b": A})).in_names == ("x", "y['b']")


# ---- options of jit


@pytest.mark.parametrize(
    ("fn", "options", "message"),
    [
        (5, {}, "`jit` received an object of type int, which is not a function. `jit` compiles a program: pass the "
                "function, and its arguments in the second call, as in `jit(fn)(*args)`."),
        (f, {"spread": "pmap"}, "`jit` received spread='pmap'. `spread` is the method that spreads clients over a mesh"
                                ': pass "shard_map" or "vmap", or "auto" to let the workbench choose.'),
        (f, {"tune_seconds": 0}, "`jit` received tune_seconds=0. `tune_seconds` is the time for trying candidates, in "
                                 "seconds: pass a positive number."),
        (f, {"tune_seconds": "1"}, "`jit` received tune_seconds='1'. `tune_seconds` is the time for trying candidates, "
                                   "in seconds: pass a positive number."),
        (f, {"plan": CHOICE, "chunk_size": 2},
         "`jit` received an object of type PlanChoiceRecord as `plan`, with chunk_size=2 and spread='auto'. A plan is "
         "the `plan_choice` of a tuned program, and includes the other two options: pass only the plan, or read a plan "
         "from JSON with `workbench.records.program.PlanChoiceRecord.from_json`."),
        (f, {"plan": CHOICE, "spread": "vmap"}, None), (f, {"plan": {"chunk_size": 2}}, None),
    ],
    ids=range(7),
)  # fmt: skip
def test_options_that_jit_refuses(fn: Any, options: Any, message: str | None) -> None:
    with pytest.raises(ProgramError) as caught:
        wb.jit(fn, **options)
    assert message is None or str(caught.value) == message
    assert caught.value.args


def test_options_that_jit_takes() -> None:
    for made in (wb.jit(f, chunk_size=3, spread="vmap"), wb.jit(chunk_size=3, spread="vmap")(f)):
        assert (made.fn, made.chunk_size, made.form) == (f, 3, LoopForm("vmap"))
    assert (wb.jit(f).chunk_size, wb.jit(f).form, wb.jit(f).plan_choice) == ("auto", LoopForm(), None)
    planned = wb.jit(f, plan=CHOICE)
    assert (planned.chunk_size, planned.form, planned.plan_choice) == (4, LoopForm("vmap", 10, 2), CHOICE)
    tuned = wb.jit(f, chunk_size="tune", tune_seconds=1e-9, spread="vmap")
    assert (tuned.seconds, tuned.form, tuned.chunk_size) == (1e-9, LoopForm("vmap"), "auto")
    assert wb.jit(f, chunk_size="tune").seconds == 20.0


# ---- rows that are the same for all clients, and constants


def test_rows_that_do_not_depend_on_the_client() -> None:
    """Of the six rows of clients, those from `w` alone are found, with what computes them."""

    @program(clients=4)
    def fn(w: Any, x: Any) -> Any:
        own, common = wb.map_fn(lambda w, row: (w * row, 2 * w), (wb.broadcast(w), x))
        again, constant = wb.map_fn(lambda c, row: (c + 1, jnp.float32(7)), (common, x))
        mixed = wb.map_fn(jnp.add, (again, own))
        return (
            wb.reduce_sum(own),
            wb.reduce_sum(common),
            wb.reduce_sum(again),
            wb.reduce_sum(constant),
            wb.reduce_sum(mixed),
        )

    plan = trace(fn, (s(3), s(4, 3))).plan
    rows = AlikeRows(plan)
    clients = [step for step in plan.steps if step.kind == "clients"]
    alike = [[rows.find(v) is not None for v in step.outputs] for step in clients]
    assert alike == [[False, True], [True, True], [False]]
    again = rows.find(clients[1].outputs[0])
    assert again is not None
    (source,) = again.inputs
    assert source is rows.find(clients[0].outputs[1])
    assert rows.find(plan.closed.jaxpr.invars[0]) is None
    assert rows.find(next(step for step in plan.steps if step.kind == "broadcast").outputs[0]) is None
    (value,) = jax.extend.core.jaxpr_as_fun(source.jaxpr)(jnp.array([1.0, 2, 3]))
    assert value.tolist() == [2.0, 4.0, 6.0]


def test_constants_are_made_where_they_are_read_first() -> None:
    @program(clients=4)
    def fn(x: Any) -> Any:
        late, unread, early = jnp.arange(3.0), jnp.arange(5.0), jnp.arange(4.0)
        mean = wb.reduce_mean(x)
        return mean + late, unread, wb.reduce_max(wb.map_fn(jnp.add, (x, early)))

    plan = trace(fn, (s(4),)).plan
    made = {
        v.aval.shape: step.level
        for step in plan.steps
        if step.kind == "server" and not step.inputs
        for v in step.outputs
    }
    assert made == {(3,): 1, (5,): 0, (4,): 0}
