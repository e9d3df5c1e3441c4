"""The spawn page's form."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from detlab_spawner.form import Pool, pool, render

DEFAULT = Pool("default", "", 4, 1, "cpu", default_aux=True, default_compute=True)


def parsed(html: str) -> ElementTree.Element:
    closed = re.sub("<(input[^>]*)>", r"<\1/>", html).replace(" required", "")
    return ElementTree.fromstring(f"<form>{closed}</form>")


def test_a_pool_of_the_api() -> None:
    answered = {
        "name": "default",
        "description": "",
        "slotsAvailable": 4,
        "slotsUsed": 1,
        "slotType": "TYPE_CPU",
        "defaultAuxPool": True,
        "defaultComputePool": True,
    }
    assert pool(answered) == DEFAULT
    assert pool({**answered, "slotType": "TYPE_UNSPECIFIED"}).slot_type == ""


def test_every_field_has_a_label_and_slots_begin_at_none() -> None:
    form = parsed(render([DEFAULT, replace(DEFAULT, name="gpus", slots_total=8)]))
    fields = {e.get("name"): e for e in form.iter() if e.tag in ("input", "select")}
    assert set(fields) == {"slots", "resource_pool", "priority"}
    labels = {e.get("for") for e in form.iter("label")}
    assert labels == {e.get("id") for e in fields.values()}
    ids = {e.get("id") for e in form.iter()}
    assert {e.get("aria-describedby") for e in fields.values()} - {None} <= ids
    assert (fields["slots"].get("value"), fields["slots"].get("min"), fields["slots"].get("max")) == (
        "0",
        "0",
        "8",
    )
    rows = [[cell.text for cell in row] for row in form.iter("tr")]
    assert rows[1:] == [["default", "3", "4", "cpu"], ["gpus", "7", "8", "cpu"]]


def test_it_says_when_nothing_is_free() -> None:
    assert "No slot is free" in render([replace(DEFAULT, slots_used=4)])
    assert "No slot is free" not in render([DEFAULT])


def test_one_pool_is_no_choice() -> None:
    assert "<select" not in render([DEFAULT])


def test_names_are_escaped() -> None:
    html = render([replace(DEFAULT, name="<b>a</b>", description='"&'), DEFAULT])
    assert "<b>" not in html
    assert "&lt;b&gt;a&lt;/b&gt;" in html and "&quot;&amp;" in html


def test_without_the_master_there_is_still_a_form() -> None:
    html = render([], "The master does not answer.")
    assert "The master does not answer. The free slots cannot be shown" in html
    assert 'name="slots"' in html and "max=" not in html.partition("priority")[0]
