import json

import numpy as np
import pytest

from workbench.federated import data as wd


def labelled(**labels):
    return wd.ClientData(
        arrays={c: {"x": np.zeros((len(y), 3), np.float32), "y": np.array(y, np.int64)} for c, y in labels.items()},
        name="toy",
        label="y",
        classes=("zero", "one", "two"),
    )


def test_counts_bytes_and_fields_by_hand():
    record = wd.describe(labelled(a=[0, 0, 1], b=[1]))
    assert (record.clients, record.examples, record.total_examples) == (("a", "b"), (3, 1), 4)
    assert record.label_counts == ((2, 1, 0), (0, 1, 0))
    assert record.bytes == (3 * (12 + 8), 12 + 8)
    assert [(f.name, f.dtype, f.shape, f.bytes) for f in record.fields] == [
        ("x", "float32", (3,), 48),
        ("y", "int64", (), 32),
    ]
    assert record.classes == ("zero", "one", "two")


def test_total_variation_by_hand():
    # Everybody: 1/2, 1/2. Client a: 2/3, 1/3, so (1/6 + 1/6) / 2 = 1/6. Client b: 0, 1, so 1/2.
    record = wd.describe(labelled(a=[0, 0, 1], b=[1]))
    assert record.total_variation == pytest.approx((1 / 6, 1 / 2))
    assert record.mean_total_variation == pytest.approx(1 / 3)
    assert record.weighted_total_variation == pytest.approx((3 / 6 + 1 / 2) / 4)
    assert record.size_variation == pytest.approx(0.5)  # sizes 3 and 1: deviation 1 over mean 2


def test_clients_without_examples_do_not_lower_the_mean():
    record = wd.describe(labelled(a=[0], b=[1], c=[]))
    assert record.total_variation == (0.5, 0.5, 0.0)
    assert record.mean_total_variation == 0.5


def test_unnamed_and_string_labels_name_themselves():
    strings = wd.ClientData(arrays={"a": {"y": np.array(["no", "yes"])}}, label="y")
    assert wd.describe(strings).classes == ("no", "yes")
    numbers = wd.ClientData(arrays={"a": {"y": np.array([7, 3, 7])}}, label="y")
    assert (wd.describe(numbers).classes, wd.describe(numbers).label_counts) == (("3", "7"), ((1, 2),))


@pytest.mark.parametrize(
    "data",
    [
        wd.ClientData(arrays={"a": {"x": np.zeros(2)}}),
        wd.ClientData(arrays={"a": {"y": np.zeros(2)}}, label="y"),
        wd.ClientData(arrays={"a": {"y": np.zeros((2, 2), int)}}, label="y"),
    ],
    ids=["no label", "measured target", "matrix label"],
)
def test_without_class_labels_there_is_no_label_heterogeneity(data):
    record = wd.describe(data)
    assert (record.label, record.label_counts, record.mean_total_variation) == (None, (), None)


def test_the_record_is_json():
    record = wd.describe(wd.digits(clients=5).train)
    assert json.loads(record.to_json())["examples"] == list(record.examples)
    assert sum(map(sum, record.label_counts)) == record.total_examples == 1438
