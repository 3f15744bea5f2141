import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.ffi
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from engine_contract import client_data, fedavg, rounds, start
from fuzz.targets import CORPUS, sign_body
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.engines import pack, read_header, unpack_apart
from workbench.engines._artifact import BodyReader, seal, unpack
from workbench.errors import InspectionError


@pytest.fixture(scope="module")
def exported() -> Any:
    return wb.trace(rounds)(start(), client_data()).export()


def test_loaded_program_gives_the_same_numbers(exported: Any, tmp_path: Path):
    exported.save(tmp_path / "rounds.wb")
    loaded = wb.load(tmp_path / "rounds.wb")
    ours, theirs = loaded(start(), client_data()), wb.jit(rounds)(start(), client_data())
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)


def test_jax_alone_reads_the_bytes(exported: Any):
    module = jax.export.deserialize(bytearray(exported))
    np.testing.assert_array_equal(
        module.call(start(), client_data())[0], wb.load(exported)(start(), client_data())[0], strict=True
    )


def test_clients_and_batch_stay_open():
    """One export for any number of clients and examples; the oracle is numpy."""
    clients, batch = jax.export.symbolic_shape("clients, batch")

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            with wb.program(clients=x.shape[0]):
                rows = wb.map_fn(lambda w, x: jnp.mean((x @ w) ** 2), (wb.broadcast(w), x))
                return wb.reduce_mean(rows), wb.reduce_max(rows)

        return loss(w), jax.grad(lambda w: loss(w)[0])(w)

    shapes = jax.ShapeDtypeStruct((3,), "float32"), jax.ShapeDtypeStruct((clients, batch, 3), "float32")
    exported = wb.trace(step)(*shapes).export()
    assert exported.header["inputs"] == ["float32[3]", "float32[clients,batch,3]"]
    loaded = wb.load(exported)
    w = np.array([1.0, -2.0, 0.5], np.float32)
    for shape in ((5, 4, 3), (17, 2, 3)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        losses = ((x @ w) ** 2).mean(1)
        slope = 2 * np.einsum("cb,cbi->i", x @ w, x) / (shape[0] * shape[1])
        (mean, largest), gradient = loaded(w, x)
        np.testing.assert_allclose([mean, largest], [losses.mean(), losses.max()], rtol=1e-5)
        np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5)
    with pytest.raises(InspectionError, match="could not be called"):
        loaded(w, x[..., :2])


def test_header_says_what_it_is(exported: Any):
    header = exported.header
    assert header["name"] == "rounds"
    assert header["jax"] == jax.__version__
    assert header["platforms"] == ["cpu"]
    assert header["inputs"] == ["float32[3]", "float32[5,4,3]", "float32[5,4]"]
    assert "rounds" in repr(exported)
    assert "float32[5,4]" in repr(wb.load(exported))


def test_gradient_program_is_exported_like_any_other():
    gradient = jax.grad(lambda w, data: rounds(w, data)[1][-1])
    loaded = wb.load(wb.trace(gradient)(start(), client_data()).export())
    np.testing.assert_allclose(loaded(start(), client_data()), gradient(start(), client_data()), rtol=1e-4, atol=1e-6)


def test_loaded_program_is_differentiable_as_often_as_asked():
    loaded = wb.load(wb.trace(fedavg)(start(), client_data()).export(derivatives=1))
    slope = jax.grad(lambda w: loaded(w, client_data())[1])(start())
    np.testing.assert_allclose(slope, jax.grad(lambda w: fedavg(w, client_data())[1])(start()), rtol=1e-4, atol=1e-6)


def test_platforms_are_kept():
    assert wb.trace(fedavg)(start(), client_data()).export(platforms=("cpu", "tpu")).header["platforms"] == [
        "cpu",
        "tpu",
    ]


def test_shardings_are_kept():
    mesh = wb.make_mesh(clients=4)

    @wb.program(clients=8)
    def mean(x: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(jnp.tanh, x))

    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("clients")))
    with jax.set_mesh(mesh):
        exported = wb.trace(mean)(x).export()
        loaded = wb.load(exported)
        result = jax.jit(loaded)(x)
    assert exported.header["devices"] == 4
    assert loaded.module.in_shardings_jax(mesh)[0].spec == P("clients")
    np.testing.assert_allclose(result, np.tanh(np.arange(8.0)).mean(), rtol=1e-6)


def test_artifact_names_no_folder_of_this_machine(exported: Any):
    text = unpack(bytes(exported))[1].mlir_module_serialized
    assert b"test_export.py" in text or b"engine_contract.py" in text
    assert str(Path(__file__).parents[2]).encode() not in text
    assert str(Path(jax.__file__).parents[1]).encode() not in text
    assert str(Path.home()).encode() + b"/" not in text


@pytest.mark.parametrize("position", [-20, -60, 10], ids=["digest", "header", "body"])
def test_changed_byte_is_refused(exported: Any, position: int):
    data = bytearray(exported)
    data[position] ^= 1
    with pytest.raises(InspectionError, match=r"SHA-256 does not match.*truncated or changed.*copy the file again"):
        wb.load(data)


def test_cut_file_is_refused(exported: Any):
    with pytest.raises(InspectionError, match="SHA-256 does not match"):
        wb.load(exported[100:])
    with pytest.raises(InspectionError, match="or are truncated"):
        wb.load(exported[:-100])


def test_other_bytes_are_refused():
    with pytest.raises(InspectionError, match=r"10 bytes that end with b'.*zipped.*not an exported program"):
        wb.load(b"PK\x03\x04zipped")


def test_later_format_is_refused(exported: Any):
    with pytest.raises(InspectionError, match=r"of format b'9'; this workbench reads format b'2'"):
        wb.load(exported[:-1] + b"9")


def _with_header(data: bytes, **changes: Any) -> bytes:
    """The same artifact as another version of JAX would have written it."""
    header = {**read_header(data), **changes}
    return _signed(header, data[: header["body_bytes"]])


def _signed(header: Any, body: bytes) -> bytes:
    """An artifact with any header, and the right digest."""
    text = header if isinstance(header, bytes) else (header if header == "[" * 100_000 else json.dumps(header)).encode()
    return seal(text, body)


def test_calling_convention_of_another_jax_is_refused(exported: Any):
    with pytest.raises(InspectionError, match=r"exported by JAX 9.9 with calling convention 999; JAX .* here runs"):
        wb.load(_with_header(exported, calling_convention=999, jax="9.9"))


def test_body_that_jax_cannot_read_is_refused(exported: Any):
    header = read_header(exported)
    with pytest.raises(InspectionError, match=r"could not read the exported program `rounds`.*exported with JAX"):
        wb.load(_signed({**header, "body_bytes": 10}, b"0123456789"))


@pytest.fixture(scope="module")
def reader() -> Iterator[BodyReader]:
    with BodyReader() as reader:
        yield reader


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "slow"])
def test_body_that_ends_its_reader_is_refused(reader: BodyReader, name: str):
    forged = sign_body((CORPUS / "artifact_body" / f"{name}.body").read_bytes())
    with pytest.raises(InspectionError, match="could not read the exported program"):
        unpack_apart(forged, reader)
    whole = sign_body((CORPUS / "artifact_body" / "export.body").read_bytes() + b" ")  # its digest is new
    assert unpack_apart(whole, reader)[0]["name"] == "f"


def test_program_of_another_process_is_read_in_a_child_that_ends():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    loaded = wb.load(sign_body((CORPUS / "artifact_body" / "export.body").read_bytes()))
    assert loaded(1.0, jnp.ones(2)) is not None
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_own_program_is_not_read_by_a_child(exported: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BodyReader, "read", lambda *_: pytest.fail("it was read by a child"))
    assert wb.load(exported).header["name"] == "rounds"


@pytest.mark.parametrize("header", [[], None, "text", 5, {}, "[" * 100_000, b"\xff", b""], ids=str)
def test_signed_header_of_another_form_is_refused(header: Any):
    with pytest.raises(InspectionError, match=r"with a header (of type|that|whose).*export the program again"):
        wb.load(_signed(header, b""))


@pytest.mark.parametrize(
    ("name", "value"), [("name", 3), ("body_bytes", "10"), ("body_bytes", True), ("platforms", [1]), ("inputs", None)]
)
def test_field_of_another_type_is_refused_by_name(exported: Any, name: str, value: Any):
    with pytest.raises(InspectionError, match=rf"whose {name} is missing or of the wrong type"):
        wb.load(_signed({**read_header(exported), name: value}, b""))


@pytest.mark.parametrize("given", [5, None, "/dev/zero", "a\0b", [b"bytes"]], ids=repr)
def test_what_is_no_artifact_is_refused(given: Any):
    with pytest.raises(InspectionError, match=r"`load` was given .*An exported program is a `bytes` object"):
        wb.load(given)


def _calling_back(derivative: bool = False) -> bytes:
    """A program that calls an address of this process, exported without JAX's own check."""

    @jax.custom_vjp
    def loud(x: Any) -> Any:
        return x

    def call(x: Any) -> Any:
        return jax.ffi.ffi_call("xla_ffi_python_cpu_callback", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    loud.defvjp(lambda x: (x, None), lambda _, slope: (call(slope),))
    allowed = [jax.export.DisabledSafetyCheck.custom_call("xla_ffi_python_cpu_callback")]
    module = jax.export.export(jax.jit(loud if derivative else call), disabled_checks=allowed)(jnp.ones(3))
    return pack(module, name="loud", vjp_order=int(derivative))


@pytest.mark.parametrize("derivative", [False, True], ids=["program", "derivative"])
def test_callback_in_an_artifact_is_refused(derivative: bool):
    with pytest.raises(InspectionError, match=r"`loud`, which calls the external targets xla_ffi_python_cpu_callback"):
        wb.load(_calling_back(derivative))


def test_stable_custom_calls_are_loaded():
    x = jnp.eye(3) * 4
    loaded = wb.load(wb.trace(lambda x: jnp.linalg.cholesky(x))(x).export())
    np.testing.assert_allclose(loaded(x), np.eye(3) * 2)


def test_program_of_another_platform_is_refused():
    loaded = wb.load(wb.trace(fedavg)(start(), client_data()).export(platforms=("tpu",)))
    with pytest.raises(InspectionError, match=r"exported for the platforms tpu, 1 device\(s\)"):
        loaded(start(), client_data())


def test_other_arguments_are_refused(exported: Any):
    with pytest.raises(InspectionError, match=r"the loaded program `rounds` could not be called"):
        wb.load(exported)(np.zeros(4, np.float32), client_data())


def test_callbacks_cannot_be_exported():
    def loud(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    with pytest.raises(InspectionError, match=r"`export` could not write `loud`.*contains no Python"):
        wb.trace(loud)(jnp.ones(3)).export()


def test_only_functions_are_exported():
    with pytest.raises(InspectionError, match="received an object of type int, which is not a function"):
        wb.trace(3)  # pyright: ignore[reportArgumentType]
