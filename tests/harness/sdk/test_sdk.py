import base64
import io
import json
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import determined.experimental._logs
from determined.common.api import errors
from determined.common.api.authentication import hash_password
from determined.common.api.token_store import TokenStore
from determined.experimental import (
    CheckpointSortBy,
    Determined,
    DownloadMode,
    Experiment,
    ExperimentState,
    LogLevel,
    OrderBy,
    TrialMetrics,
    client,
)
from determined.experimental._checkpoint import CheckpointNotAvailable
from harness.api_stub import (
    PASSWORD,
    UUID,
    Answer,
    Reply,
    Request,
    Stream,
    StubMaster,
    checkpoint,
    experiment,
    failure,
    log,
    report,
    trial,
    user,
)


@pytest.fixture
def det(master: StubMaster) -> Iterator[Determined]:
    with Determined(user="ada", password=PASSWORD) as connection:
        yield connection


def get(master: StubMaster, path: str, noun: str, content: dict[str, Any]) -> None:
    master.answer("GET", f"/api/v1/{path}", {noun: content})


# Submitting


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "train.py").write_text("x")
    return folder


@pytest.mark.parametrize("kind", ["dict", "path", "text"])
def test_create_experiment(master: StubMaster, det: Determined, model: Path, kind: str) -> None:
    master.answer("POST", "/api/v1/experiments", {"experiment": experiment(8), "config": {}, "warnings": []})
    text = "name: digits\nsearcher:\n  name: single\n"
    file = model.parent / "config.yaml"
    file.write_text(text)
    config: Any = {
        "dict": {"name": "digits", "searcher": {"name": "single"}},
        "path": str(file),
        "text": text,
    }[kind]
    made = det.create_experiment(config, model, project_id=4, template="small")
    assert (made.id, made.name) == (8, "digits")
    (request,) = master.sent("POST", "/api/v1/experiments")
    assert request.body["config"] == text
    assert [f["path"] for f in request.body["modelDefinition"]] == ["train.py"]
    assert (request.body["activate"], request.body["projectId"], request.body["template"]) == (
        True,
        4,
        "small",
    )


def test_create_experiment_tells_launch_warnings(master: StubMaster, det: Determined, model: Path) -> None:
    told = ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"]
    master.answer(
        "POST", "/api/v1/experiments", {"experiment": experiment(8), "config": {}, "warnings": told}
    )
    with pytest.warns(UserWarning, match="experiment 8: LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"):
        det.create_experiment({"name": "x"}, model)


def test_create_experiment_with_bad_input(master: StubMaster, det: Determined, model: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no configuration file 'nowhere.yaml'"):
        det.create_experiment("nowhere.yaml", model)
    refusal = failure(
        400, "InvalidArgument", "invalid experiment configuration: searcher.metrik: unknown key"
    )
    master.answer("POST", "/api/v1/experiments", refusal)
    with pytest.raises(errors.APIException, match=r"searcher\.metrik: unknown key"):
        det.create_experiment({"searcher": {"metrik": 1}}, model)


# Experiments


def test_experiment_attributes(master: StubMaster, det: Determined) -> None:
    get(master, "experiments/3", "experiment", experiment())
    e = det.get_experiment(3)
    assert (e.id, e.state, e.labels, e.progress) == (3, ExperimentState.COMPLETED, {"a", "b"}, 1)
    assert (e.searcher_metric, e.smaller_is_better) == ("accuracy", False)
    assert e.start_time is not None
    assert e.start_time.isoformat() == "2026-01-02T03:04:05.678000+00:00"


def test_not_found(det: Determined, master: StubMaster) -> None:
    master.answer("GET", "/api/v1/experiments/9", failure(404, "NotFound", "experiment '9' not found"))
    with pytest.raises(errors.NotFoundException, match="experiment '9' not found"):
        det.get_experiment(9)


@pytest.mark.parametrize("verb", ["activate", "pause", "cancel", "kill", "archive", "unarchive"])
def test_verbs(master: StubMaster, det: Determined, verb: str) -> None:
    get(master, "experiments/3", "experiment", experiment())
    master.answer("POST", f"/api/v1/experiments/3/{verb}", {})
    getattr(det.get_experiment(3), verb)()
    assert len(master.sent("POST", f"/api/v1/experiments/3/{verb}")) == 1


def test_changes_go_out_as_patches_and_come_back(master: StubMaster, det: Determined) -> None:
    state = experiment()
    master.answer("GET", "/api/v1/experiments/3", lambda _: Reply({"experiment": state}))

    def patch(request: Request) -> Answer:
        state.update({k: v for k, v in request.body.items() if k in state})
        return Reply({"experiment": state})

    master.answer("PATCH", "/api/v1/experiments/3", patch)
    master.answer("PUT", "/api/v1/experiments/3/labels/c/d", {"labels": ["a", "b", "c/d"]})
    master.answer("DELETE", "/api/v1/experiments/3/labels/a", {"labels": ["b", "c/d"]})
    e = det.get_experiment(3)
    e.set_name("new")
    e.add_label("c/d")
    e.remove_label("a")
    assert e.labels == {"b", "c/d"}
    e.set_max_slots(None)
    e.set_gc_policy(save_experiment_best=1, save_trial_best=2, save_trial_latest=0)
    assert e.name == "new"
    bodies = [r.body for r in master.sent("PATCH", "/api/v1/experiments/3")]
    assert bodies == [
        {"id": 3, "name": "new"},
        {"id": 3, "resources": {"maxSlots": None}},
        {
            "id": 3,
            "checkpointStorage": {"saveExperimentBest": 1, "saveTrialBest": 2, "saveTrialLatest": 0},
        },
    ]


def _states(master: StubMaster, *states: str) -> None:
    left = list(states)

    def answer(_: Request) -> Answer:
        return Reply({"experiment": experiment(state=left.pop(0) if len(left) > 1 else left[0])})

    master.answer("GET", "/api/v1/experiments/3", answer)


def test_wait(master: StubMaster, det: Determined) -> None:
    _states(master, "STATE_QUEUED", "STATE_RUNNING", "STATE_ERROR")
    assert det.get_experiment(3).wait(interval=0.001) is ExperimentState.ERROR
    _states(master, "STATE_RUNNING", "STATE_PAUSED")
    with pytest.raises(ValueError, match="experiment 3 is paused"):
        det.get_experiment(3).wait(interval=0.001)


def test_trials_and_the_first_of_them(master: StubMaster, det: Determined) -> None:
    get(master, "experiments/3", "experiment", experiment(state="STATE_RUNNING"))
    calls: list[int] = []

    def trials(request: Request) -> Answer:
        calls.append(1)
        there = [trial(12)] if len(calls) > 2 else []
        return Reply({"trials": there, "pagination": {"endIndex": len(there), "total": len(there)}})

    master.answer("GET", "/api/v1/experiments/3/trials", trials)
    e = det.get_experiment(3)
    assert e.await_first_trial(interval=0.001).id == 12
    assert [t.hparams for t in e.list_trials()] == [{"lr": 0.1}]


def test_no_trial_will_come(master: StubMaster, det: Determined) -> None:
    get(master, "experiments/3", "experiment", experiment(state="STATE_ERROR"))
    master.paged("/api/v1/experiments/3/trials", "trials", [])
    with pytest.raises(ValueError, match="experiment 3 ended as ERROR without a trial"):
        det.get_experiment(3).await_first_trial()


@pytest.mark.parametrize(("smaller", "best"), [(True, (2, 0.25)), (False, (1, 0.5))])
def test_best_trial(master: StubMaster, det: Determined, smaller: bool, best: tuple[int, float]) -> None:
    config = {"searcher": {"metric": "m", "smaller_is_better": smaller}}
    get(master, "experiments/3", "experiment", experiment(config=config))
    values = {
        1: report(1, m=0.5),
        2: report(1, m=0.25),
        3: report(1, m="NaN"),
        4: report(1, other=9),
        5: None,
    }
    trials = [trial(i, bestValidation=value) for i, value in values.items()]
    master.paged("/api/v1/experiments/3/trials", "trials", trials)
    found = det.get_experiment(3).best_trial()
    assert found is not None
    assert (found[0].id, found[1]) == best


def test_list_experiments_walks_pages_and_passes_filters(master: StubMaster, det: Determined) -> None:
    master.paged("/api/v1/experiments", "experiments", [experiment(i) for i in range(1, 451)], 100)
    found = det.list_experiments(users=["ada"], states=[ExperimentState.ACTIVE], labels=["a", "b"])
    assert [e.id for e in found] == list(range(1, 451))
    query = master.sent("GET", "/api/v1/experiments")[0].query
    assert (query["users"], query["states"], query["labels"]) == (["ada"], ["STATE_ACTIVE"], ["a", "b"])


def test_download_code(master: StubMaster, det: Determined, tmp_path: Path) -> None:
    get(master, "experiments/3", "experiment", experiment())
    packed = base64.b64encode(b"tgz").decode()
    master.answer("GET", "/api/v1/experiments/3/model_def", {"b64Tgz": packed})
    path = det.get_experiment(3).download_code(str(tmp_path / "new"))
    assert path == str(tmp_path / "new" / "experiment_3_model_def.tgz")
    assert Path(path).read_bytes() == b"tgz"


# Trials


def test_metrics(master: StubMaster, det: Determined) -> None:
    def row(steps: int, group: str, metrics: dict[str, Any]) -> dict[str, Any]:
        return {
            "archived": False,
            "endTime": "2026-01-02T03:04:05Z",
            "group": group,
            "id": 1,
            "metrics": metrics,
            "totalBatches": steps,
            "trialId": 12,
            "trialRunId": 1,
        }

    training = row(10, "training", {"avg_metrics": {"loss": 1.5}, "batch_metrics": [{"loss": 2}]})
    validation = row(10, "validation", {"validation_metrics": {"accuracy": 0.5}})
    route = "/api/v1/trials/metrics/trial_metrics"
    master.answer("GET", route, Stream([{"metrics": [training]}, {"metrics": [validation]}]))
    get(master, "trials/12", "trial", trial())
    first, second = det.get_trial(12).iter_metrics()
    assert isinstance(first, TrialMetrics)
    assert (first.group, first.metrics, first.batch_metrics) == ("training", {"loss": 1.5}, [{"loss": 2}])
    assert (second.metrics, second.steps_completed, second.total_batches) == ({"accuracy": 0.5}, 10, 10)
    assert len(list(det.iter_trials_metrics([12, 13], "validation"))) == 2
    assert master.requests[-1].query == {"trialIds": ["12", "13"], "group": ["validation"]}


def test_logs(master: StubMaster, det: Determined) -> None:
    get(master, "trials/12", "trial", trial())
    route = "/api/v1/trials/12/logs"
    master.answer("GET", route, Stream([log(1, "one"), log(2, "two")]))
    t = det.get_trial(12)
    assert list(t.iter_logs()) == ["one\n", "two\n"]
    assert list(t.iter_logs(tail=2)) == ["two\n", "one\n"]  # the master answers the newest first
    assert master.requests[-1].query == {"limit": ["2"], "orderBy": ["ORDER_BY_DESC"]}
    list(
        t.iter_logs(
            head=5, min_level=LogLevel.ERROR, rank_ids=[0, -1], timestamp_after="2026-01-02T01:00:00+01:00"
        )
    )
    assert master.requests[-1].query == {
        "limit": ["5"],
        "levels": ["LOG_LEVEL_ERROR", "LOG_LEVEL_CRITICAL"],
        "rankIds": ["0", "-1"],
        "timestampAfter": ["2026-01-02T00:00:00Z"],
    }
    assert list(t.iter_logs(head=0)) == []
    with pytest.raises(ValueError, match="only one"):
        t.iter_logs(follow=True, head=1)
    with pytest.raises(ValueError, match="'yesterday' is not a time"):
        list(t.iter_logs(timestamp_after="yesterday"))


def test_following_outlives_a_restart_of_the_master(
    master: StubMaster, det: Determined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(determined.experimental._logs, "_PAUSE", 0.001)
    streams = [
        Stream([log(1, "one")], breaks=True),
        Stream([], breaks=True),
        Stream([log(1, "one"), log(2, "two")], breaks=True),
        Stream([log(1, "one"), log(2, "two"), log(3, "three")]),
    ]
    get(master, "trials/12", "trial", trial())
    master.answer("GET", "/api/v1/trials/12/logs", lambda _: streams.pop(0))
    assert list(det.get_trial(12).iter_logs(follow=True)) == ["one\n", "two\n", "three\n"]
    assert streams == []


def test_older_names_still_work_and_say_so(master: StubMaster, det: Determined) -> None:
    get(master, "experiments/3", "experiment", experiment())
    master.paged("/api/v1/experiments/3/checkpoints", "checkpoints", [checkpoint()])
    with pytest.warns(FutureWarning, match="list_checkpoints"):
        assert det.get_experiment(3).top_checkpoint().uuid == UUID


# Checkpoints


FILES = {"weights/w.bin": b"12345"}


def archive(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def stored(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "storage" / "inner" / UUID / "weights"
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(FILES["weights/w.bin"])
    return {"type": "shared_fs", "host_path": str(tmp_path / "storage"), "storage_path": "inner"}


@pytest.mark.parametrize("mode", [DownloadMode.DIRECT, DownloadMode.AUTO])
def test_download_from_storage(
    master: StubMaster, det: Determined, tmp_path: Path, mode: DownloadMode
) -> None:
    get(master, f"checkpoints/{UUID}", "checkpoint", checkpoint(storage=stored(tmp_path)))
    path = det.get_checkpoint(UUID).download(tmp_path / "out", mode)
    assert path == str(tmp_path / "out")
    assert (tmp_path / "out" / "weights" / "w.bin").read_bytes() == b"12345"
    assert json.loads((tmp_path / "out" / "metadata.json").read_text()) == {"steps_completed": 100}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config", "out", "storage"]


@pytest.mark.parametrize("mode", [DownloadMode.MASTER, DownloadMode.AUTO])
def test_download_through_the_master(
    master: StubMaster, det: Determined, tmp_path: Path, mode: DownloadMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    get(master, f"checkpoints/{UUID}", "checkpoint", checkpoint())  # in storage that cannot be read from here
    master.answer("GET", f"/checkpoints/{UUID}", archive(FILES))
    path = Path(det.get_checkpoint(UUID).download(mode=mode))
    assert path == Path("checkpoints") / UUID
    assert (path / "weights" / "w.bin").read_bytes() == b"12345"
    det.get_checkpoint(UUID).download(mode=mode)
    assert len(master.sent("GET", f"/checkpoints/{UUID}")) == 1  # what is there is not fetched again


def test_half_a_checkpoint_in_storage_is_not_taken_for_a_whole_one(
    master: StubMaster, det: Determined, tmp_path: Path
) -> None:
    storage = stored(tmp_path)
    (tmp_path / "storage" / "inner" / UUID / "weights" / "w.bin").write_bytes(b"123")
    get(master, f"checkpoints/{UUID}", "checkpoint", checkpoint(storage=storage))
    with pytest.raises(CheckpointNotAvailable, match=r"lacks 'weights/w\.bin' in its storage"):
        det.get_checkpoint(UUID).download(tmp_path / "out", DownloadMode.DIRECT)
    assert not (tmp_path / "out").exists()
    master.answer("GET", f"/checkpoints/{UUID}", archive(FILES))
    det.get_checkpoint(UUID).download(tmp_path / "out")
    assert (tmp_path / "out" / "weights" / "w.bin").read_bytes() == b"12345"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"no archive", "cannot be unpacked"),
        (archive({"../evil": b"x"}), "cannot be unpacked"),
        (archive({"other": b"x"}), "lacks 'weights/'"),
        (archive(FILES)[:700], "cannot be unpacked"),
    ],
)
def test_a_bad_archive_leaves_nothing(
    master: StubMaster, det: Determined, tmp_path: Path, content: bytes, complaint: str
) -> None:
    get(master, f"checkpoints/{UUID}", "checkpoint", checkpoint())
    master.answer("GET", f"/checkpoints/{UUID}", content)
    with pytest.raises(CheckpointNotAvailable, match=complaint):
        det.get_checkpoint(UUID).download(tmp_path / "in" / "out")
    assert list((tmp_path / "in").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_a_deleted_checkpoint(master: StubMaster, det: Determined) -> None:
    get(master, f"checkpoints/{UUID}", "checkpoint", checkpoint(state="STATE_DELETED"))
    with pytest.raises(CheckpointNotAvailable, match="is DELETED"):
        det.get_checkpoint(UUID).download()


def test_list_checkpoints_orders(master: StubMaster, det: Determined) -> None:
    get(master, "experiments/3", "experiment", experiment())
    master.paged("/api/v1/experiments/3/checkpoints", "checkpoints", [checkpoint(), checkpoint("b")])
    e = det.get_experiment(3)

    def query(*args: Any, **kwargs: Any) -> dict[str, list[str]]:
        e.list_checkpoints(*args, **kwargs)
        asked = master.requests[-1].query
        return {k: v for k, v in asked.items() if k not in ("offset", "limit", "states")}

    assert query() == {"sortByAttr": ["SORT_BY_SEARCHER_METRIC"]}
    assert query("loss", OrderBy.ASC) == {"sortByMetric": ["loss"], "orderBy": ["ORDER_BY_ASC"]}
    assert query(CheckpointSortBy.END_TIME, OrderBy.DESC) == {
        "sortByAttr": ["SORT_BY_END_TIME"],
        "orderBy": ["ORDER_BY_DESC"],
    }
    assert [c.uuid for c in e.list_checkpoints(max_results=1)] == [UUID]
    with pytest.raises(ValueError, match="together"):
        e.list_checkpoints("loss")


def test_select_checkpoint_of_a_trial(master: StubMaster, det: Determined) -> None:
    get(master, "trials/12", "trial", trial())
    there = [checkpoint("gone", state="STATE_DELETED"), checkpoint("a"), checkpoint("b")]
    master.paged("/api/v1/trials/12/checkpoints", "checkpoints", there)
    t = det.get_trial(12)
    assert t.select_checkpoint(best=True).uuid == "a"
    assert t.select_checkpoint(uuid="b").uuid == "b"
    with pytest.raises(ValueError, match="trial 12 has no checkpoint 'gone'"):
        t.select_checkpoint(uuid="gone")
    with pytest.raises(ValueError, match="exactly one"):
        t.select_checkpoint(best=True, latest=True)


def test_checkpoint_metadata_and_deletion(master: StubMaster, det: Determined) -> None:
    get(master, f"checkpoints/{UUID}", "checkpoint", checkpoint())
    master.answer("POST", f"/api/v1/checkpoints/{UUID}/metadata", {})
    master.answer("POST", "/api/v1/checkpoints/rm", {})
    master.answer("DELETE", "/api/v1/checkpoints", {})
    c = det.get_checkpoint(UUID)
    assert (c.size, c.steps_completed, c.training.searcher_metric) == (5, 100, 0.9)
    c.add_metadata({"note": "x"})
    c.remove_metadata(["note", "absent"])
    assert c.metadata == {"steps_completed": 100}
    added, removed = master.sent("POST", f"/api/v1/checkpoints/{UUID}/metadata")
    assert added.body["checkpoint"]["metadata"] == {"steps_completed": 100, "note": "x"}
    assert removed.body["checkpoint"]["metadata"] == {"steps_completed": 100}
    c.remove_files(["*.bin"])
    c.delete()
    assert master.requests[-2].body == {"checkpointUuids": [UUID], "checkpointGlobs": ["*.bin"]}
    assert master.requests[-1].body == {"checkpointUuids": [UUID]}


# Users, and the functions of the module


def test_users(master: StubMaster, det: Determined) -> None:
    group = {"agentUid": 1000, "agentGid": 1000, "agentUser": "bob", "agentGroup": "staff"}
    bob = user("bob", id=9, agentUserGroup=group)
    master.paged("/api/v1/users", "users", [user("ada"), bob])
    master.answer("GET", "/api/v1/users/bob/by-username", {"user": bob})
    master.answer("GET", "/api/v1/users/9", {"user": bob})
    master.answer("POST", "/api/v1/users", {"user": bob})
    master.answer("PATCH", "/api/v1/users/9", {"user": bob})
    assert [u.username for u in det.list_users(active=True)] == ["ada", "bob"]
    made = det.create_user("bob", admin=False, password=PASSWORD)
    body = master.sent("POST", "/api/v1/users")[0].body
    assert body["password"] == hash_password(PASSWORD)
    assert (body["isHashed"], body["user"]["username"]) == (True, "bob")
    made.change_password("Another-1-Word")
    assert master.sent("PATCH", "/api/v1/users/9")[0].body == {
        "password": hash_password("Another-1-Word"),
        "isHashed": True,
    }
    assert det.get_user_by_name("bob").agent_uid == 1000
    for weak in (lambda: made.change_password("weak"), lambda: det.create_user("eve", False, "weak")):
        with pytest.raises(ValueError, match="a password needs at least"):
            weak()


def test_the_module_keeps_one_connection(master: StubMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_shared", None)
    get(master, "experiments/3", "experiment", experiment())
    with pytest.raises(errors.NotLoggedIn):
        client.get_experiment(3)
    client.login(user="ada", password=PASSWORD)
    assert isinstance(client.get_experiment(3), Experiment)
    assert client.get_session_username() == "ada"
    master.answer("POST", "/api/v1/auth/logout", {})
    client.logout()
    assert TokenStore(master.url).users() == {}
    with pytest.raises(errors.NotLoggedIn):
        client.whoami()


def test_the_two_ways_to_import() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from determined.experimental import Determined as one
        from determined.experimental.client import Determined as other
    assert one is other
