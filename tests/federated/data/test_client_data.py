import numpy as np
import pytest

from workbench.errors import DataError, ProgramError
from workbench.federated import data as wd


def two_clients():
    return wd.ClientData(
        arrays={
            "ann": {"x": np.arange(6.0).reshape(3, 2), "y": np.array([0, 1, 1])},
            "bob": {"x": np.ones((1, 2)), "y": np.array([2])},
        },
        name="toy",
        label="y",
        metadata={"ann": {"age": 30}},
    )


def test_client_data_report_clients_fields_and_counts():
    data = two_clients()
    assert (data.clients, data.fields, data.counts.tolist(), len(data)) == (("ann", "bob"), ("x", "y"), [3, 1], 2)
    assert list(data) == ["ann", "bob"]
    assert "ann" in data
    assert data[-1]["y"].tolist() == data["bob"]["y"].tolist() == [2]


def test_client_data_cannot_be_changed_and_copy_nothing():
    x = np.zeros((2, 2))
    data = wd.ClientData(arrays={"a": {"x": x}})
    with pytest.raises(ValueError, match="read-only"):
        data["a"]["x"][0, 0] = 1.0
    assert np.shares_memory(data["a"]["x"], x)
    assert x.flags.writeable


def test_select_keeps_order_and_metadata_of_the_chosen():
    chosen = two_clients().select(["bob", 0])
    assert chosen.clients == ("bob", "ann")
    assert dict(chosen.metadata) == {"ann": {"age": 30}}
    assert not two_clients().select(["bob"]).metadata


def test_pooled_concatenates_in_client_order():
    assert two_clients().pooled()["y"].tolist() == [0, 1, 1, 2]


def test_repr_says_sizes_and_shapes():
    expected = "ClientData('toy', 2 clients, 4 examples, 1 to 3 each; x: float64[examples, 2], y: int64[examples])"
    assert repr(two_clients()) == expected


def test_federate_gives_each_client_its_rows():
    x, y = np.arange(10).reshape(5, 2), np.array([0, 1, 2, 0, 1])
    data = wd.federate(x, y, [np.array([4, 0]), np.array([1, 2, 3])], name="n", classes=("a", "b", "c"))
    assert data[0]["x"].tolist() == [[8, 9], [0, 1]]
    assert data[1]["y"].tolist() == [1, 2, 0]
    assert (data.label, data.classes) == ("y", ("a", "b", "c"))


def test_federate_takes_measured_targets_and_no_targets():
    x, rows = np.zeros((2, 1)), [np.array([0]), np.array([1])]
    assert wd.federate(x, np.array([0.5, 1.5]), rows).label is None
    assert wd.federate(x, None, rows).fields == ("x",)


BAD = {
    "no clients": ({}, "there are no clients"),
    "no fields": ({"a": {}}, "client 'a' has no fields"),
    "missing field": (
        {"a": {"x": np.zeros(1), "y": np.zeros(1)}, "b": {"x": np.zeros(1)}},
        "client 'b' lacks field 'y', which client 'a' has",
    ),
    "extra field": (
        {"a": {"x": np.zeros(1)}, "b": {"x": np.zeros(1), "z": np.zeros(1)}},
        "client 'b' has a field 'z', which client 'a' lacks",
    ),
    "ragged inside": (
        {"a": {"x": np.zeros(2), "y": np.zeros(3)}},
        "client 'a' has fields of different lengths: field 'x' has 2, 'y' has 3 examples",
    ),
    "dtype": (
        {"a": {"x": np.zeros(1, np.float32)}, "b": {"x": np.zeros(1, np.int32)}},
        "client 'b', field 'x': dtype int32, but float32 for 'a'",
    ),
    "shape": (
        {"a": {"x": np.zeros((1, 2))}, "b": {"x": np.zeros((1, 3))}},
        "client 'b', field 'x': examples of shape (3,), but (2,) for 'a'",
    ),
    "scalar": ({"a": {"x": np.float64(1)}}, "client 'a', field 'x': a single value instead of one per example"),
    "object": (
        {"a": {"x": np.array([[1], [1, 2]], dtype=object)}},
        "client 'a', field 'x': rows of different lengths or kinds (dtype object)",
    ),
}


@pytest.mark.parametrize(("arrays", "fact"), BAD.values(), ids=BAD.keys())
def test_bad_arrays_are_named_by_client_and_field(arrays, fact):
    with pytest.raises(DataError) as error:
        wd.ClientData(arrays=arrays, name="toy")
    message = str(error.value)
    assert message.startswith("client data `toy` cannot be used: " + fact)
    assert "All clients need the same fields" in message
    assert "Repair or remove these clients" in message


def test_all_offenders_are_reported_up_to_five():
    arrays = {"a": {"x": np.zeros(1)}} | {f"b{i}": {"x": np.zeros(1, int)} for i in range(7)}
    with pytest.raises(DataError, match=r"'b0'.*'b4'.*\(and 2 more\)"):
        wd.ClientData(arrays=arrays)


def test_text_of_different_lengths_is_one_dtype():
    data = wd.ClientData(arrays={"a": {"t": np.array(["a"])}, "b": {"t": np.array(["long"])}})
    assert data.pooled()["t"].tolist() == ["a", "long"]


def test_unknown_label_metadata_and_client_are_errors_that_name_what_exists():
    arrays = {"a": {"x": np.zeros(1)}}
    with pytest.raises(
        DataError, match=r"label='y', but the clients have the fields 'x'.*pass its name, or label=None"
    ):
        wd.ClientData(arrays=arrays, label="y")
    with pytest.raises(DataError, match=r"metadata for 'q', which have no arrays.*use ids among 'a'"):
        wd.ClientData(arrays=arrays, metadata={"q": {}})
    with pytest.raises(DataError, match=r"client 'q' was requested, but the data contain 'a'\. Use one of these ids"):
        wd.ClientData(arrays=arrays)["q"]


@pytest.mark.parametrize(
    ("ids", "fact"),
    [(["ann", "ann"], "'ann' more than once"), (["ann", 0], "'ann' more than once"), ([], "no client")],
    ids=["twice", "id and position", "nobody"],
)
def test_select_refuses_repeated_and_no_clients(ids, fact):
    with pytest.raises(DataError, match=f"`select` was asked for {fact}.*pass distinct ids"):
        two_clients().select(ids)


def test_federate_refuses_a_partition_of_other_data():
    with pytest.raises(DataError, match=r"`x` of shape \(3,\), `y` of shape \(2,\) and a partition of 3.*dirichlet"):
        wd.federate(np.zeros(3), np.zeros(2), [np.array([0, 1, 2])])
    with pytest.raises(DataError, match=r"`x` of shape \(4,\) and a partition of 3 examples"):
        wd.federate(np.zeros(4), None, wd.iid(3, 1, seed=0))


def test_federate_groups_the_rows_of_a_data_frame_by_client():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"client": ["b", "a", "b"], "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [7, 8, 9]})
    frame["count"] = pd.array([1, 2, 3], dtype="Int64")
    data = wd.federate(frame, by="client", name="visits", classes=tuple("abcdefghij"))
    assert (data.clients, data.name, data.label, data.counts.tolist()) == (("a", "b"), "visits", "y", [1, 2])
    assert data["b"]["x"].tolist() == [[1, 2], [5, 6]]
    assert data["b"]["y"].tolist() == [7, 9]
    assert data["b"]["count"].dtype == np.int32
    assert data["b"]["count"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("column", "dtype", "fact"),
    [
        ([1, None, 3], "Int64", "1 missing value.*in column 'x' of client 'a'"),
        ([1.0, None, 3.0], "Float64", "1 missing value"),
        (["u", "v", "w"], "str", "text.*in column 'x'"),
        ([[1], [2], [3, 4]], object, "lists of different lengths, in column 'x' of client 'b'"),
    ],
    ids=["integers", "floats", "text", "lists"],
)
def test_federate_refuses_columns_that_are_no_numbers(column, dtype, fact):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"client": ["b", "a", "b"], "x": pd.Series(column, dtype=dtype)})
    with pytest.raises(ProgramError, match=fact):
        wd.federate(frame, by="client")


def test_federate_needs_a_partition_or_a_column_of_clients():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"client": ["a"], "x": [1.0]})
    for arguments, options in (((frame,), {}), ((np.zeros(3),), {"by": "client"}), ((frame, np.zeros(1)), {"by": "x"})):
        with pytest.raises(DataError, match="pass arrays with a partition of their rows, or only a DataFrame"):
            wd.federate(*arguments, **options)
    with pytest.raises(ProgramError, match="by='user'"):
        wd.federate(frame, by="user")
