"""`determined.experimental.client` of the official client against our master."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from interop.official import DIGITS, Official

STEPS = [20, 40]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's single trial, shortened."""
    short = yaml.safe_load((DIGITS / "single.yaml").read_text())
    short["searcher"]["max_length"]["batches"] = STEPS[-1]
    short["min_validation_period"]["batches"] = STEPS[0]
    file = tmp_path_factory.mktemp("config") / "short.yaml"
    file.write_text(yaml.safe_dump(short))
    return file


def test_sdk(official: Official, config: Path, tmp_path: Path) -> None:
    ours = official.cluster
    said = official.python(Path(__file__).with_name("sdk_script.py"), config, DIGITS, tmp_path)

    experiment, trial = ours.experiment(said["experiment"]), ours.trials(said["experiment"])[0]
    assert (said["state"], said["trial_state"]) == ("COMPLETED", "COMPLETED")
    assert said["trial"] == trial["id"]
    assert said["hparams"] == trial["hparams"]
    assert said["summary"] == ["avg_metrics", "validation_metrics"] == sorted(trial["summaryMetrics"])
    assert said["found"] == [said["experiment"]]
    assert (said["user"], said["users"]) == ("determined", ["admin", "determined"])

    for reports in said["metrics"].values():
        assert [steps for steps, _ in reports] == STEPS
    assert said["across"] == STEPS
    validations = dict(said["metrics"]["validation"])
    best = trial["bestValidation"]
    assert validations[best["totalBatches"]] == best["metrics"]["avgMetrics"]

    assert said["best"] == said["top"] == said["by_uuid"]
    assert said["best_validation"] == best["metrics"]["avgMetrics"]
    assert said["best_validation"]["accuracy"] == max(m["accuracy"] for m in validations.values())
    assert said["of_trial"] == len(STEPS)
    assert said["metadata"]["chosen"] is True
    assert said["metadata"]["steps_completed"] == best["totalBatches"]
    direct, master = (Path(said["downloads"][mode]) for mode in ("DIRECT", "MASTER"))
    assert contents(direct).keys() >= {"state_dict.pth", "load_data.json", "code/model_def.py"}
    assert contents(direct) == contents(master)

    state, left = said["partly"]
    assert state == "PARTIALLY_DELETED"
    assert "state_dict.pth" in left
    assert not [name for name in left if name.startswith("code/") and name != "code/"]
    assert ours.get(f"/api/v1/checkpoints/{said['best']}")["checkpoint"]["state"] == "STATE_DELETED"

    assert said["edited"] == ["from the SDK", "a description", "some notes", ["second one"], True]
    assert experiment["name"] == "from the SDK"
    assert "".join(said["log"]) == ours.logs(trial["id"])
    assert list(tmp_path.glob("*.t*gz")), "download_code has written the model definition"


def contents(folder: Path) -> dict[str, bytes]:
    """Files below a folder, without the client's own note beside them."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    files.pop("metadata.json", None)
    return files
