"""What the Python SDK changes piece by piece: labels, the metadata of checkpoints."""

from __future__ import annotations

from master.api.rig import Rig


async def test_labels_one_by_one(rig: Rig) -> None:
    things = await rig.things()
    path = f"/api/v1/experiments/{things.experiment.id}"
    assert (await rig.call("PATCH", path, {"labels": []})).status == 200
    for method, label, left in (
        ("PUT", "tried", ["tried"]),
        ("PUT", "a%20b/c", ["a b/c", "tried"]),
        ("PUT", "tried", ["a b/c", "tried"]),
        ("DELETE", "tried", ["a b/c"]),
        ("DELETE", "tried", ["a b/c"]),
    ):
        answer = await rig.call(method, f"{path}/labels/{label}")
        assert (answer.status, answer.json) == (200, {"labels": left})
    assert (await rig.call("GET", path)).json["experiment"]["labels"] == ["a b/c"]


async def test_metadata_of_a_checkpoint(rig: Rig) -> None:
    things = await rig.things()
    path = f"/api/v1/checkpoints/{things.checkpoint.uuid}"
    steps = things.checkpoint.steps_completed
    noted = {"steps_completed": steps, "note": "the one for the paper"}
    answer = await rig.call("POST", f"{path}/metadata", {"checkpoint": {"metadata": noted}})
    assert (answer.status, answer.json["checkpoint"]["metadata"]) == (200, noted)
    for wrong in ({"note": "x"}, {"steps_completed": steps + 1}):
        refused = await rig.call("POST", f"{path}/metadata", {"checkpoint": {"metadata": wrong}})
        assert (refused.status, f"it must stay {steps}" in refused.error) == (400, True)
    assert (await rig.call("GET", path)).json["checkpoint"]["metadata"] == noted
