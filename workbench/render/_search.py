"""Searches for shardings and machines as text, and the chosen specs as code."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from workbench.errors import InspectionError
from workbench.records.advice import JitRecord, SearchRecord, ShardingChoiceRecord, SliceRecord, SpecGroupRecord
from workbench.records.hardware import AxisRecord
from workbench.records.sharding import pattern_of
from workbench.render.units import bytes_text, seconds_text, spec_text

_SHOWN = 8
_IMPORTS = {"nnx.jit": ["from flax import nnx"], "eqx.filter_jit": ["import equinox as eqx"]}
Style = Literal["rules", "in_shardings", "nnx"]


def render_search_text(search: SearchRecord) -> str:
    """Formats a search as a table: choices with their specs, fastest fitting choice first, or the smallest slices."""
    if search.slices:
        return _slices_text(search)
    bar = f" ({search.error_bar})" if search.error_bar else ""
    head = (
        f"Shardings of {search.name}, seconds on {search.chip}{bar}: {search.planned_count} planned, "
        f"{search.compiled_count} compiled for {search.target}"
        + {"complete": ".", "time": "; the time ran out.", "stopped": "; stopped."}[search.ended]
    )
    chunked = any(choice.chunk_size for choice in search.choices)
    ran = any(choice.measured_seconds is not None for choice in search.choices)
    optional = (*(("chunk",) if chunked else ()), "seconds", *(("measured",) if ran else ()))
    rows: list[tuple[str, ...]] = [("", "choice", "mesh", *optional, "peak", "sent by one device", "how")]
    for choice in search.choices[:_SHOWN]:
        traffic = (
            ", ".join(f"{bytes_text(n)} over {axis}" for axis, n in choice.sent_bytes.items() if n >= 1) or "nothing"
        )
        rows.append(
            (
                "*" if choice.pareto else "",
                choice.name,
                " x ".join(f"{name}={size}" for name, size in choice.mesh.items()),
                *((str(choice.chunk_size or "all"),) if chunked else ()),
                "unknown" if choice.seconds is None else seconds_text(choice.seconds),
                *((_measured_text(choice),) if ran else ()),
                ("unknown" if choice.peak_bytes is None else bytes_text(choice.peak_bytes))
                + (" (does not fit)" if choice.fits is False else ""),
                traffic,
                choice.how,
            )
        )
    hows = {choice.how for choice in search.choices[:_SHOWN]}
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    sharded = search.best.specs if any(map(any, search.best.specs.values())) else {}
    specs = [f"  {pattern}: {spec_text(spec)}" for pattern, spec in sharded.items()] or ["  all replicated"]
    notes = [f"Note: {note}" for note in search.notes]
    return "\n".join(
        [
            head,
            "",
            *table,
            f"* no other {'compiled ' if {'compiled'} < hows else ''}choice is both faster and smaller",
            *(["chunk: number of clients that a device processes at a time"] if chunked else []),
            "",
            f"{search.best.name}:",
            *specs,
            *notes,
        ]
    )


def _measured_text(choice: ShardingChoiceRecord) -> str:
    if choice.measured_seconds is None or choice.measured_interval is None:
        return "not run"
    low, high = map(seconds_text, choice.measured_interval)
    return f"{seconds_text(choice.measured_seconds)} ({low} to {high})"


def _slices_text(search: SearchRecord) -> str:
    """The smallest fitting slice of each family, with its peak and time, and why smaller slices do not fit."""
    lines = [f"The smallest slice of each family on which {search.name} fits:"]
    for row in search.slices:
        peak = "unknown" if row.peak_bytes is None else bytes_text(row.peak_bytes)
        room = "" if row.available_bytes is None else f" of {bytes_text(row.available_bytes)}"
        seconds = "" if row.seconds is None else f", {seconds_text(row.seconds)} per call"
        verdict = "fits" if row.fits else "does not fit on any slice that was tried; this is the largest"
        note = f" ({row.note})" if row.note else ""
        chunk = "" if row.chunk_size is None else f", chunks of {row.chunk_size} clients"
        lines.append(
            f"  {row.chip}: {row.target} ({row.chips} chips) {verdict}: {peak}{room} on a device{seconds}{chunk}, "
            f"{row.how}{note}"
        )
        specs = "; ".join(f"{pattern} {spec_text(spec)}" for pattern, spec in list(row.specs.items())[:_SHOWN])
        if row.fits:
            lines.append(f"    with {specs or 'every argument replicated on every device'}")
        lines += [f"    not {reason}" for reason in row.tried if ": " in reason and not reason.startswith(_own(row))]
    errors = [f"Predicted seconds: {search.error_bar}."] if search.error_bar else []
    return "\n".join([*lines, *errors, *(f"Note: {note}" for note in search.notes)])


def _own(row: SliceRecord) -> str:
    """First words of reasons about the row's own slice; they are omitted, because the row shows the same figures."""
    return f"{row.target}: a device needs"


def sharding_code(
    choice: ShardingChoiceRecord,
    *,
    style: Style = "rules",
    arguments: Sequence[str] = (),
    function: str = "step",
    references: bool = False,
    groups: Sequence[SpecGroupRecord] = (),
    jit: JitRecord | None = None,
) -> str:
    """Code that applies the specs of a choice to a program.

    Args:
        choice: A choice from a `SearchRecord`.
        style: "rules" generates rules by path; they place the arguments, however the function is compiled.
            "in_shardings" passes the same rules to `jax.jit` and needs no arrays. "nnx" generates one
            `nnx.with_partitioning` per parameter.
        arguments: The names of the arguments, in order; by default all arguments that have a spec.
        function: The name of the function.
        references: Whether an argument contains a `jax.Ref`.
        groups: The groups of all arguments, used to make exceptions to rules that also match arrays of another group.
        jit: How the function is jitted, and which of its results replace arguments.

    Returns:
        Python source; "rules" and "in_shardings" run unchanged if the arguments have these names.

    Raises:
        InspectionError: for "in_shardings", if an argument contains a `jax.Ref`.
    """
    if style == "in_shardings" and references:
        message = (
            f"`code` was given style='in_shardings' for `{function}`, which has references as arguments. `jax.jit` "
            "moves arrays to its `in_shardings`, but not references: use style='rules', which creates new references."
        )
        raise InspectionError(message)
    if style == "nnx":
        lines = ["# where the parameter is created: nnx.Linear(..., kernel_init=...)"]
        lines += [
            f"{pattern}: nnx.with_partitioning(init, {_entries(spec)!r})" for pattern, spec in choice.specs.items()
        ]
        return "\n".join(["# " + line if not line.startswith("#") else line for line in lines])
    names = list(arguments) or _arguments_of(choice.specs)
    mesh = [AxisRecord(name=name, size=size) for name, size in choice.mesh.items()]
    chunk, exact = choice.chunk_size, _exceptions(choice.specs, groups)
    imports = [] if chunk is None else ["import workbench as wb"]
    jit = jit or JitRecord()
    is_requested = bool(jit.updated and (choice.results or (choice.how == "planned" and choice.specs)))
    if style == "rules":
        chunks = [] if chunk is None else [f"chunk_size={chunk}"]
        is_requested = is_requested and (chunk is None or jit.wrapper == "jax.jit")
        compiles = _jit_code(function, jit, chunks, is_requested=is_requested)
        imports += _IMPORTS.get(jit.wrapper, []) if is_requested else []
        placement = placement_code(
            choice.specs, mesh, arguments=names, imports=imports, references=references, exact=exact
        )
        return "\n".join([placement, *compiles])
    call = ", ".join(f'shardings("{name}", {name})' for name in names) + "," * (len(names) == 1)
    compiled = f"jax.jit({function}, " if chunk is None else f"wb.jit({function}, chunk_size={chunk}, "
    results = ""
    if is_requested and jit.wrapper == "jax.jit":
        results = f", out_shardings={jit.results % tuple(f'shardings({name!r}, {name})' for name in jit.updated)}"
    return "\n".join(
        [
            *_rules(choice.specs, mesh, imports, exact=exact),
            "def shardings(name, tree):",
            "    by_path = lambda path, x: NamedSharding(mesh, spec_of(name, path, x.ndim))",
            "    return jax.tree_util.tree_map_with_path(by_path, tree)",
            "",
            "",
            f"{function} = {compiled}in_shardings=({call}){results}{', ' * bool(jit.options)}{jit.options})",
        ]
    )


def _jit_code(function: str, jit: JitRecord, options: Sequence[str], *, is_requested: bool) -> list[str]:
    """Code that jits the function, and requests the shardings of updated arguments if the compiler chooses others."""
    wrapper = "wb.jit" if options else jit.wrapper
    if not is_requested:
        return ["", f"{function} = {wrapper}({', '.join([function, *options])})"] if options else []
    requested = jit.results % tuple(f"sharding_of({argument})" for argument in jit.updated)
    lines = ["", "", "# Updated arrays keep the shardings of their arguments; otherwise, the compiler chooses."]
    options = [*options, *filter(None, [jit.options])]
    if wrapper == "nnx.jit":
        return [
            *lines,
            "def sharding_of(module):",
            "    return nnx.StateSharding(jax.tree.map(lambda x: x.sharding, nnx.state(module)))",
            "",
            "",
            f"{function} = nnx.jit({', '.join([function, f'in_shardings={requested}', *options])})",
        ]
    lines += ["def sharding_of(tree):", '    return jax.tree.map(lambda x: getattr(x, "sharding", None), tree)', "", ""]
    if wrapper == "eqx.filter_jit":
        return [
            *lines,
            f"def kept(*args, fn={function}, results={requested}):",
            "    shard = lambda sharding, x: x if sharding is None else eqx.filter_shard(x, sharding)",
            "    return jax.tree.map(shard, results, fn(*args), is_leaf=lambda sharding: sharding is None)",
            "",
            "",
            f"{function} = eqx.filter_jit(kept)  # add your own `donate=`",
        ]
    return [*lines, f"{function} = {wrapper}({', '.join([function, *options, f'out_shardings={requested}'])})"]


def placement_code(
    specs: Mapping[str, Sequence[Sequence[str]]],
    mesh: Sequence[AxisRecord],
    *,
    arguments: Sequence[str] = (),
    imports: Sequence[str] = (),
    others_stay: bool = False,
    references: bool = False,
    exact: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> str:
    """Code that places the arrays in the arguments, however the function is compiled.

    Args:
        specs: Specs by array path, with `*` for layer numbers; optimizer states follow their parameter.
        mesh: The axes of the mesh.
        arguments: The names of the arguments; by default all arguments that have a spec.
        imports: Additional import lines.
        others_stay: Whether arrays without a spec keep their sharding; if not, they are replicated.
        references: Whether an argument contains a `jax.Ref`, which is replaced by a reference to the placed array.
        exact: Specs by whole path; they take precedence over the other specs.

    Returns:
        Python source that runs unchanged if the arguments have these names.
    """
    names = list(arguments) or _arguments_of(specs)
    return "\n".join(
        [
            *_rules(specs, mesh, imports, default="None" if others_stay else "P()", exact=exact),
            "def placed(name, tree):",
            "    def place(path, x):",
            '        spec = spec_of(name, path, x.ndim) if hasattr(x, "ndim") else None',
            *(
                [
                    "        if isinstance(x, jax.Ref):",
                    "            return jax.new_ref(jax.device_put(x[...], NamedSharding(mesh, spec)))",
                ]
                if references
                else []
            ),
            "        return x if spec is None else jax.device_put(x, NamedSharding(mesh, spec))",
            "",
            "    return jax.tree_util.tree_map_with_path(place, tree)",
            "",
            "",
            *(f'{name} = placed("{name}", {name})' for name in names),
        ]
    )


def _rules(
    specs: Mapping[str, Sequence[Sequence[str]]],
    mesh: Sequence[AxisRecord],
    imports: Sequence[str],
    default: str = "P()",
    exact: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> list[str]:
    """The mesh, the rules by path, and the function that looks up a rule."""
    names, sizes = tuple(axis.name for axis in mesh), tuple(axis.size for axis in mesh)
    types = ", ".join(f"AxisType.{axis.type.capitalize()}" for axis in mesh)
    if len({axis.type for axis in mesh}) == 1:
        types = f"(AxisType.{mesh[0].type.capitalize()},) * {len(mesh)}"
    else:
        types = f"({types})"
    rules = _ordered(specs, exact or {})
    return [
        "import fnmatch",
        "import re",
        "",
        "import jax",
        "from jax.sharding import AxisType, NamedSharding, PartitionSpec as P",
        *(["", *imports] if imports else []),
        "",
        f"mesh = jax.make_mesh({sizes}, {names}, axis_types={types})",
        "SPECS = {  # by the end of a path: the paths of optimizer states end like those of their parameters",
        *(f"    {rule!r}: {spec_text(spec)}," for rule, spec in rules.items()),
        "}",
        "",
        "",
        "def spec_of(name, path, ndim):",
        '    words = re.findall(r"\\w+", name + jax.tree_util.keystr(path))',
        '    path = "/".join(word for word in words if word != "value")',
        "    found = (spec for end, spec in SPECS.items() if fnmatch.fnmatchcase(path, end) and len(spec) <= ndim)",
        f"    return next(found, {default})",
        "",
        "",
    ]


def _arguments_of(specs: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(re.split(r"[\[.]", pattern, maxsplit=1)[0] for pattern in specs))


def _entries(spec: Sequence[Sequence[str]]) -> tuple[str | tuple[str, ...] | None, ...]:
    return tuple(axes[0] if len(axes) == 1 else tuple(axes) or None for axes in spec)


def _ordered(
    specs: Mapping[str, Sequence[Sequence[str]]], exact: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, Sequence[Sequence[str]]]:
    """The rules, most specific first; omits rules that a wider rule with the same spec already covers."""
    rules = {_rule(pattern): spec for pattern, spec in specs.items()}
    covered = {a for a in rules for b in rules if a != b and rules[a] == rules[b] and fnmatch.fnmatchcase(a, b)}
    rules = {rule: spec for rule, spec in rules.items() if rule not in covered} | dict(exact)
    ordered = sorted(rules, key=lambda rule: (rule not in exact, -rule.count("/"), rule.count("*"), rule))
    return {rule: rules[rule] for rule in ordered}


def _exceptions(
    specs: Mapping[str, Sequence[Sequence[str]]], groups: Sequence[SpecGroupRecord]
) -> dict[str, Sequence[Sequence[str]]]:
    """Rules by whole path, for arrays that would otherwise get the spec of another group."""
    spec_of_leaf = {leaf: specs.get(group.pattern, ()) for group in groups for leaf in group.leaves}
    rules, groups_of = _ordered(specs, {}), {}
    for group in groups:
        for leaf in group.leaves:
            path = _path(leaf)
            fitting = (spec for rule, spec in rules.items() if fnmatch.fnmatchcase(path, rule))
            spec = next((spec for spec in fitting if len(_stripped(spec)) <= len(group.shape)), ())
            if _stripped(spec) != _stripped(spec_of_leaf[leaf]):
                pattern = pattern_of(leaf)
                alike = [spec for other, spec in spec_of_leaf.items() if pattern_of(other) == pattern]
                groups_of[_path(pattern if all(spec == spec_of_leaf[leaf] for spec in alike) else leaf)] = spec_of_leaf[
                    leaf
                ]
    return groups_of


def _path(name: str) -> str:
    """The path of an array as the pasted code writes it: "model/layers/0/kernel"."""
    return "/".join(word for word in re.findall(r"[\w*]+", name) if word != "value")


def _stripped(spec: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    entries = [tuple(entry) for entry in spec]
    while entries and not entries[-1]:
        entries.pop()
    return tuple(entries)


def _rule(pattern: str) -> str:
    """A pattern that matches a path without its argument: "*/layers/*/up" for `params['layers'][*]['up']`.

    For a training state, the pattern also omits `params`, so that it matches the optimizer's state: "*/Dense_0/bias"
    for `state.params['Dense_0']['bias']`.
    """
    argument, *words = re.findall(r"[\w*]+", pattern)
    words = words[1:] if words[:1] == ["params"] and len(words) > 1 else words
    return "/".join(["*", *words]) if words else argument
