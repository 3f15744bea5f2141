"""Pictures of meshes: every device once, at its place, with the clients that it holds."""

import math
import xml.etree.ElementTree as ET

import pytest

from workbench import render
from workbench.records.hardware import AxisRecord, ClientRange, DeviceRecord, MeshRecord

NS = {"svg": "http://www.w3.org/2000/svg"}


def mesh(*sizes, clients=(), coords=None, **fields):
    import itertools

    names = ("pods", "clients", "model")[-len(sizes) :]
    devices = tuple(
        DeviceRecord(id=number, position=place, coords=coords(place) if coords else None, **fields)
        for number, place in enumerate(itertools.product(*map(range, sizes)))
    )
    axes = tuple(AxisRecord(name=name, size=size) for name, size in zip(names, sizes, strict=True))
    return MeshRecord(axes=axes, devices=devices, abstract=not fields, clients=clients)


HELD = tuple(
    ClientRange(placement="clients", device_id=number, start=first, stop=min(first + 3, 10), padding=2 * (number > 5))
    for number in range(8)
    for first in [number // 2 * 3]
)


def boxes(markup):
    """The box of every device: a card, or a square where there are many."""
    drawn = ET.fromstring(markup).iterfind(".//*[@data-device]")
    return {int(each.attrib["data-device"]): next(each.iter(f"{{{NS['svg']}}}rect")) for each in drawn}


def words(markup):
    return [entry.text for entry in ET.fromstring(markup).iterfind(".//svg:text", NS)]


@pytest.mark.parametrize("sizes", [(1,), (8,), (4, 2), (2, 3, 2), (1120, 8)], ids=str)
def test_every_device_is_drawn_once_and_none_on_another(sizes):
    record = mesh(*sizes)
    drawn = boxes(render.svg(record))
    assert sorted(drawn) == [device.id for device in record.devices]
    assert len({(r.attrib["x"], r.attrib["y"]) for r in drawn.values()}) == len(drawn)


def test_picture_is_no_wider_than_asked():
    root = ET.fromstring(render.svg(mesh(1120, 8), width=500))
    assert float(root.attrib["width"]) <= 500
    right = max(
        float(r.attrib["x"]) + float(r.attrib["width"]) for r in boxes(render.svg(mesh(1120, 8), width=500)).values()
    )
    assert right <= 500 - 12


def test_cards_of_a_long_row_have_no_part_of_a_text():
    assert set(filter(None, words(render.svg(mesh(4, 16), live=True, links=True)))) == {*map(str, range(64))}
    assert "15" in words(render.svg(mesh(16), live=True, links=True))


@pytest.mark.parametrize("width", [300, 760])
@pytest.mark.parametrize("sizes", [(16,), (8, 16), (2, 60), (2, 4, 2)], ids=str)
def test_no_device_is_cut_off(sizes, width):
    markup = render.svg(mesh(*sizes), width=width)
    drawn = boxes(markup)
    assert len(drawn) == math.prod(sizes)
    right = max(float(r.attrib["x"]) + float(r.attrib["width"]) for r in drawn.values())
    assert right <= float(ET.fromstring(markup).attrib["width"])


def test_rows_and_columns_are_the_last_two_axes_and_the_first_makes_panels():
    markup = render.svg(mesh(2, 3, 2))
    drawn = boxes(markup)
    assert drawn[0].attrib["y"] == drawn[1].attrib["y"]  # model runs across
    assert drawn[0].attrib["x"] == drawn[2].attrib["x"]  # clients run down
    assert {"pods 0", "pods 1"} <= set(words(markup))
    assert "rows: clients (3) · columns: model (2) · panels: pods (2)" in words(markup)


def test_clients_are_in_the_label_and_tooltip_with_their_empty_slots():
    markup = render.svg(mesh(4, 2).replace(clients=HELD))
    assert {"clients 0–2", "clients 9 +2∅"} <= set(words(markup))
    title = ET.fromstring(markup).find(".//*[@data-device='7']/svg:title", NS)
    assert title.text == "device 7, clients=3, model=1, clients: client 9, 2 empty"


def test_live_picture_of_many_devices_is_their_place_alone():
    markup = render.svg(mesh(4, 28, 8), live=True)
    (place,) = ET.fromstring(markup).iterfind(".//*[@data-cells]")
    assert boxes(markup) == {}
    assert {"pods 0", "pods 3"} <= set(words(markup))
    assert float(place.attrib["width"]) > 100


def test_cards_stand_apart_where_links_are_drawn():
    drawn = boxes(render.svg(mesh(4, 2), links=True))
    assert float(drawn[2].attrib["y"]) - float(drawn[0].attrib["y"]) > 1.5 * float(drawn[0].attrib["height"])


def test_torus_layout_follows_the_coordinates():
    # Mesh order is x fastest reversed: device 0 sits at x=1.
    record = mesh(4, coords=lambda place: (1 - place[0] % 2, place[0] // 2), platform="tpu", core_on_chip=0)
    drawn = boxes(render.svg(record, layout="torus"))
    assert float(drawn[1].attrib["x"]) < float(drawn[0].attrib["x"])
    assert drawn[0].attrib["y"] < drawn[2].attrib["y"]


def test_torus_layout_without_coordinates_falls_back_to_the_mesh():
    assert boxes(render.svg(mesh(4, 2), layout="torus")).keys() == boxes(render.svg(mesh(4, 2))).keys()


def test_names_are_escaped():
    record = MeshRecord(
        axes=(AxisRecord(name="<b>&", size=1),), devices=(DeviceRecord(id=0, position=(0,), kind="</svg>"),)
    )
    root = ET.fromstring(render.svg(record))
    assert root.attrib["aria-label"] == "Mesh <b>&=1 (auto): 1 device (</svg>)"


def test_description_counts_hosts_and_slices():
    record = mesh(2, kind="TPU v4")
    record = record.replace(devices=tuple(d.replace(host=d.id, slice_index=d.id) for d in record.devices))
    assert render.describe(record) == "Mesh model=2 (auto): 2 devices (TPU v4), 2 hosts, 2 slices"


def test_text_has_hops_and_clients_and_stays_short():
    axes = (AxisRecord(name="clients", size=100, mean_hops=1.25, max_hops=2),)
    devices = tuple(DeviceRecord(id=n, position=(n,)) for n in range(100))
    held = tuple(ClientRange(placement="clients", device_id=n, start=n, stop=n + 1) for n in range(100))
    text = render.text(MeshRecord(axes=axes, devices=devices, clients=held))
    assert "clients: 1.25 hops to the next device on average, 2 at most" in text
    assert "100 clients: up to 1 per device" in text
    assert text.endswith("… and 84 more devices")
