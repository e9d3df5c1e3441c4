import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

import determined as det
from determined import pytorch
from determined.errors import StorageError, TrialError
from determined.exec import harness
from determined.pytorch import Batch, Epoch
from harness.core_stub_master import StubMaster, trial_environment
from harness.pytorch.digits_trial import EPOCH, ITEMS, SmallTrial, seed


def fit(trial_class: Any = SmallTrial, *, aggregation: int = 1, **arguments: Any) -> Any:
    seed()
    with pytorch.init(aggregation_frequency=aggregation) as context:
        trial = trial_class(context)
        pytorch.Trainer(trial, context).fit(**arguments)
    return trial


def weights(trial: SmallTrial) -> list[torch.Tensor]:
    optimizer = trial.optimizer.state_dict()["state"]
    return [*trial.model.state_dict().values(), *(s["momentum_buffer"] for s in optimizer.values())]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def checkpoints(master: StubMaster) -> dict[int, str]:
    return {r["metadata"]["steps_completed"]: r["uuid"] for r in master.sent("/checkpoints")}


def steps(master: StubMaster, group: str) -> list[int]:
    return [r["metrics"]["stepsCompleted"] for r in master.sent("/metrics") if r["group"] == group]


@pytest.mark.parametrize(("aggregation", "at"), [(1, 10), (1, 14), (3, 10)])
def test_a_resumed_training_is_the_same_to_the_bit(trial: StubMaster, aggregation: int, at: int) -> None:
    whole = fit(aggregation=aggregation, max_length=Batch(20), reporting_period=Batch(5))
    trial.requests.clear()
    plan: dict[str, Any] = {"aggregation": aggregation, "reporting_period": Batch(5)}
    fit(max_length=Batch(20), checkpoint_period=Batch(at), **plan)
    resumed = fit(max_length=Batch(20), latest_checkpoint=checkpoints(trial)[at], **plan)
    assert resumed.seen == whole.seen[at:]
    assert same(weights(resumed), weights(whole))
    assert resumed.recorder.epochs == whole.recorder.epochs == 20 // EPOCH
    assert resumed.recorder.calls[0][:2] == ("startup", at)
    assert [call[0] for call in resumed.recorder.calls[1:3]] == ["load_start", "training_start"]


def test_each_epoch_has_the_whole_data_once_around(trial: StubMaster) -> None:
    done = fit(max_length=Epoch(2))
    assert [epoch for epoch, _, _ in done.seen] == [0] * EPOCH + [1] * EPOCH
    indexes = [i for _, _, batch in done.seen for i in batch]
    assert sorted(indexes[:ITEMS]) == list(range(ITEMS))
    assert sorted(indexes[ITEMS : 2 * ITEMS]) == list(range(ITEMS))
    assert indexes[:ITEMS] != indexes[ITEMS : 2 * ITEMS]
    assert indexes[:ITEMS] != list(range(ITEMS))


def test_preemption_saves_and_leaves_and_the_next_run_goes_on(
    trial: StubMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(max_length=Batch(12), reporting_period=Batch(4))
    trial.requests.clear()
    trial.preempt.set()
    first = fit(max_length=Batch(12), reporting_period=Batch(4))
    assert len(first.seen) == 4
    assert list(checkpoints(trial)) == [4]
    assert any(r.path.endswith("/ack_preemption") for r in trial.requests)
    assert steps(trial, "validation") == []
    trial.preempt.clear()
    second = fit(max_length=Batch(12), reporting_period=Batch(4), latest_checkpoint=checkpoints(trial)[4])
    assert same(weights(second), weights(whole))


def test_what_is_reported_when(trial: StubMaster) -> None:
    fit(
        max_length=Epoch(2),
        reporting_period=Batch(5),
        validation_period=Epoch(1),
        checkpoint_period=Batch(6),
        checkpoint_policy="none",
        step_zero_validation=True,
    )
    assert steps(trial, "training") == [5, 6, 7, 10, 12, 14]
    assert steps(trial, "validation") == [0, 7, 14]
    assert list(checkpoints(trial)) == [6, 12, 14]
    reports = [
        r["metrics"]["metrics"]["avgMetrics"] for r in trial.sent("/metrics") if r["group"] == "training"
    ]
    assert [(r["batches"], r["epochs"]) for r in reports] == [
        (5, 0),
        (6, 0),
        (7, 1),
        (10, 1),
        (12, 1),
        (14, 2),
    ]
    assert [r["batch_idx"] for r in reports] == [2.0, 5.0, 6.0, 8.0, 10.5, 12.5]
    validations = [
        r["metrics"]["metrics"]["avgMetrics"] for r in trial.sent("/metrics") if r["group"] == "validation"
    ]
    assert set(validations[0]) == {"validation_loss", "batches", "epochs"}
    progress = [p["progress"] for p in trial.sent("/progress")]
    assert progress[-1] == 1.0
    assert progress == sorted(progress)
    states = [s["state"] for s in trial.sent("/runner/metadata")]
    assert set(states) <= {"validating", "training", "checkpointing"}  # a short one may not be seen
    assert states[-1] == "checkpointing"


def test_callbacks_are_called_in_order(trial: StubMaster) -> None:
    done = fit(max_length=Epoch(1), reporting_period=Batch(4))
    names = [call[0] for call in done.recorder.calls]
    assert names == [
        "startup",
        "training_start",
        "epoch_start",
        "workload_end",
        "epoch_end",
        "workload_end",
        "validation_start",
        "validation_epoch_start",
        "validation_epoch_end",
        "validation_end",
        "save_start",
        "checkpoint_end",
        "write_end",
        "upload_end",
        "shutdown",
    ]
    _, averages, batches = done.recorder.calls[3]
    assert [b["batch_idx"] for b in batches] == [0, 1, 2, 3]
    assert (averages["batches"], averages["epochs"]) == (4, 0)
    assert averages["loss"] == pytest.approx(sum(b["loss"] for b in batches) / 4)
    assert done.recorder.calls[-2] == ("upload_end", next(iter(checkpoints(trial).values())))


@pytest.mark.parametrize(
    ("best", "smaller_is_better", "policy", "saved"),
    [
        (None, True, "best", [3, 6]),
        (0.0, True, "best", [6]),
        (0.0, False, "best", [3, 6]),
        (1e9, False, "best", [6]),
        (0.0, True, "all", [3, 6]),
        (None, True, "none", [6]),
    ],
)
def test_the_checkpoint_policy(
    trial: StubMaster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    best: float | None,
    smaller_is_better: bool,
    policy: Any,
    saved: list[int],
) -> None:
    searcher = {"name": "single", "metric": "validation_loss", "smaller_is_better": smaller_is_better}
    environment = trial_environment(trial, tmp_path, searcher=searcher)
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", environment["DET_EXPERIMENT_CONFIG"])
    trial.best_metric = best
    fit(max_length=Batch(6), validation_period=Batch(3), checkpoint_policy=policy)
    assert list(checkpoints(trial)) == saved


def test_a_missing_searcher_metric_names_those_that_are_there(
    trial: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = trial_environment(trial, tmp_path, searcher={"name": "single", "metric": "acuracy"})
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", environment["DET_EXPERIMENT_CONFIG"])
    with pytest.raises(TrialError, match=r"'acuracy'.*validation_loss"):
        fit(max_length=Batch(2))
    assert list(checkpoints(trial)) == [2], "what was trained is kept"


def test_another_trials_checkpoint_gives_its_weights_only(
    trial: StubMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fit(max_length=Batch(3))
    uuid = checkpoints(trial)[3]
    monkeypatch.setenv("DET_TRIAL_ID", "9")
    trained: list[dict[str, torch.Tensor]] = []

    class Second(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            if not trained:
                trained.append({k: v.clone() for k, v in self.model.state_dict().items()})
                assert self.optimizer.state_dict()["state"] == {}
            return super().train_batch(batch, epoch_idx, batch_idx)

    second = fit(Second, max_length=Batch(2), latest_checkpoint=uuid)
    assert same(list(trained[0].values()), list(first.model.state_dict().values()))
    assert [idx for _, idx, _ in second.seen] == [0, 1]


def test_a_finished_training_that_is_started_again_has_nothing_to_do(trial: StubMaster) -> None:
    fit(max_length=Batch(3))
    uuid = checkpoints(trial)[3]
    trial.requests.clear()
    again = fit(max_length=Batch(3), latest_checkpoint=uuid)
    assert again.seen == []
    assert trial.sent("/metrics") == []
    assert trial.sent("/checkpoints") == []


def test_stop_requested_saves_and_ends(trial: StubMaster) -> None:
    class Stops(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            self.context.set_stop_requested(batch_idx == 3)
            assert self.context.current_train_batch() == batch_idx
            assert self.context.current_train_epoch() == epoch_idx
            assert self.context.is_epoch_start() == (batch_idx % EPOCH == 0)
            return super().train_batch(batch, epoch_idx, batch_idx)

    assert len(fit(Stops, max_length=Batch(100)).seen) == 4
    assert list(checkpoints(trial)) == [4]


def test_invalid_hyperparameters_in_the_trial(trial: StubMaster) -> None:
    class Rejects(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            raise det.InvalidHP("too wide")

    with pytest.raises(SystemExit) as exit_:
        fit(Rejects, max_length=Batch(1))
    assert exit_.value.code == 0
    assert trial.sent("/early_exit") == [{"reason": "EXITED_REASON_INVALID_HP"}]


def test_aggregation_steps_with_averaged_gradients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    class Plain(SmallTrial):
        clip = True

        def build_training_data_loader(self) -> Any:
            return pytorch.DataLoader(self.dataset(), batch_size=BATCHES[self.context._aggregation_frequency])

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            self.model.eval()  # dropout would differ between the two
            _, x, y = batch
            loss = ((self.model(x) - y) ** 2).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, clip_grads=self._clip)
            return {"loss": loss}

    BATCHES = {1: 10, 5: 2}
    one = fit(Plain, max_length=Batch(4))
    five = fit(Plain, aggregation=5, max_length=Batch(20))
    assert len(one.norms) == len(five.norms) == 4
    assert one.norms == pytest.approx(five.norms, rel=1e-5)
    for a, b in zip(one.model.parameters(), five.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_lr_schedules_are_stepped_as_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    Mode = pytorch.LRScheduler.StepMode

    class Schedules(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.schedules = {}
            for mode, frequency in ((m, f) for m in Mode for f in (1, 2)):
                parameter = torch.nn.Parameter(torch.zeros(1))
                optimizer = context.wrap_optimizer(torch.optim.SGD([parameter], lr=1.0))
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
                optimizer.step()  # torch warns of a schedule that is stepped before its optimizer
                self.schedules[mode, frequency] = context.wrap_lr_scheduler(schedule, mode, frequency)

    done = fit(Schedules, aggregation=2, max_length=Epoch(2))
    taken = {key: schedule.last_epoch for key, schedule in done.schedules.items()}
    assert taken == {
        (Mode.STEP_EVERY_EPOCH, 1): 2,
        (Mode.STEP_EVERY_EPOCH, 2): 1,
        (Mode.STEP_EVERY_BATCH, 1): 14,
        (Mode.STEP_EVERY_BATCH, 2): 7,
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 1): 7,
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 2): 3,
        (Mode.MANUAL_STEP, 1): 0,
        (Mode.MANUAL_STEP, 2): 0,
    }


def test_reducers(trial: StubMaster) -> None:
    class Reduced(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.items = context.wrap_reducer(sum, "items")
            self.extremes = context.wrap_reducer(Extremes(), for_training=False)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            self.items.update(len(batch[0]))
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            self.items.update(len(batch[0]))
            self.extremes.values += batch[0].tolist()
            return super().evaluate_batch(batch, batch_idx) | {"most": batch_idx, "all": 1}

        def evaluation_reducer(self) -> Any:
            return {"most": pytorch.Reducer.MAX, "all": pytorch.Reducer.SUM}

    class Extremes(pytorch.MetricReducer):
        def reset(self) -> None:
            self.values: list[int] = []

        def per_slot_reduce(self) -> Any:
            return min(self.values), max(self.values)

        def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
            return {
                "low": min(low for low, _ in per_slot_metrics),
                "high": max(h for _, h in per_slot_metrics),
            }

    fit(Reduced, max_length=Batch(6), reporting_period=Batch(3))
    training = [
        r["metrics"]["metrics"]["avgMetrics"] for r in trial.sent("/metrics") if r["group"] == "training"
    ]
    assert [r["items"] for r in training] == [24, 24]
    [validation] = [
        r["metrics"]["metrics"]["avgMetrics"] for r in trial.sent("/metrics") if r["group"] == "validation"
    ]
    assert {k: validation[k] for k in ("items", "low", "high", "most", "all")} == {
        "items": ITEMS,
        "low": 0,
        "high": ITEMS - 1,
        "most": 6,
        "all": 7,
    }


def test_an_evaluation_over_the_whole_data_and_foreign_loaders(trial: StubMaster) -> None:
    class Whole(SmallTrial):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.experimental.disable_dataset_reproducibility_checks()

        def build_training_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(self.dataset(), batch_size=8)

        build_validation_data_loader = build_training_data_loader

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            return {"validation_loss": torch.tensor(float(len(data_loader)))}

    whole = fit(Whole, max_length=Batch(10), checkpoint_period=Batch(4))
    assert [batch[0] for _, _, batch in whole.seen] == [0, 8, 16, 24, 32, 40, 48, 0, 8, 16]
    resumed = fit(Whole, max_length=Batch(10), latest_checkpoint=checkpoints(trial)[4])
    assert resumed.seen == whole.seen[4:]
    assert same(weights(resumed), weights(whole))
    assert trial.sent("/metrics")[-1]["metrics"]["metrics"]["avgMetrics"]["validation_loss"] == 7.0


def test_a_downloaded_checkpoint_becomes_a_trial_again(
    trial: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads(os.environ["DET_EXPERIMENT_CONFIG"])
    config["checkpoint_storage"]["secret_key"] = "nobody's business"
    config["environment"] = {"registry_auth": {"password": "nobody's business"}}
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", json.dumps(config))
    code = tmp_path / "run" / "train" / "model"
    code.mkdir(parents=True)
    (code / "helper.py").write_text("WIDTH = 4\n")
    (code / "model_def.py").write_text(MODEL_DEF)
    from determined._import import import_class, import_from_path

    with import_from_path(code):
        trial_class = import_class("model_def:Tiny")
    done = fit(trial_class, max_length=Batch(2))
    folder = tmp_path / "checkpoints" / checkpoints(trial)[2]
    assert sorted(p.name for p in folder.iterdir()) == [
        ".detlab-manifest.json",
        "code",
        "load_data.json",
        "metadata.json",
        "state_dict.pth",
        "trial_state.pkl",
    ]
    load_data = json.loads((folder / "load_data.json").read_text())
    assert load_data["trial_cls_spec"] == "model_def:Tiny"
    assert load_data["experiment_config"]["data"] == {"place": "here"}
    assert "nobody's business" not in (folder / "load_data.json").read_text()
    assert load_data["hparams"] == {"global_batch_size": 8}
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["steps_completed"] == 2
    assert metadata["determined_version"] == det.__version__
    # Plain tensors and numbers only: torch's safe loader takes it.
    torch.load(folder / "state_dict.pth", weights_only=True)

    monkeypatch.delenv("DET_ALLOCATION_ID")
    (code / "helper.py").write_text("WIDTH = 'changed'\n")
    loaded: Any = pytorch.load_trial_from_checkpoint_path(folder)
    assert same(list(loaded.model.state_dict().values()), list(done.model.state_dict().values()))
    assert loaded.context.get_hparam("global_batch_size") == 8
    given: Any = pytorch.load_trial_from_checkpoint_path(folder, trial_class=trial_class)
    assert same(list(given.model.state_dict().values()), list(done.model.state_dict().values()))
    with pytest.raises(StorageError, match=r"load_data\.json"):
        pytorch.load_trial_from_checkpoint_path(tmp_path)


MODEL_DEF = """
import torch
from determined import pytorch
import helper

class Tiny(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(helper.WIDTH, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))
    def build_training_data_loader(self):
        return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, helper.WIDTH)), batch_size=4)
    build_validation_data_loader = build_training_data_loader
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch[0]).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss
    def evaluate_batch(self, batch):
        return {"validation_loss": self.model(batch[0]).mean()}
"""


def test_the_training_length_may_come_from_the_config(
    trial: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    searcher = {"metric": "validation_loss", "time_metric": "batches", "max_time": 3}
    environment = trial_environment(trial, tmp_path, searcher=searcher)
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", environment["DET_EXPERIMENT_CONFIG"])
    assert len(fit().seen) == 3
    fit(max_length=Epoch(1))
    assert "differs from searcher.max_time" in caplog.text


def test_off_cluster_the_trainer_runs_without_a_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="needs a max_length"):
        fit()
    tried = fit(test_mode=True)
    assert len(tried.seen) == 1
    assert ("validation_epoch_end", 1) in tried.recorder.calls
    whole = fit(max_length=Batch(8))
    first = fit(max_length=Batch(8), checkpoint_period=Batch(5))
    uuid = next(call[1] for call in first.recorder.calls if call[0] == "upload_end")
    assert same(weights(fit(max_length=Batch(8), latest_checkpoint=uuid)), weights(whole))


def test_off_cluster_the_scripts_own_seeds_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def drawn(**config: Any) -> tuple[float, float, float]:
        seed(8)
        with pytorch.init(exp_conf=config):
            return torch.rand(1).item(), float(np.random.rand()), random.random()

    assert drawn() == drawn() == drawn(reproducibility={"experiment_seed": 8})
    by_nine = drawn(reproducibility={"experiment_seed": 9})
    assert not set(by_nine) & set(drawn())


class _Plateau(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer)
        context.wrap_lr_scheduler(plateau, pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH)


class _NoModel(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context


class _TwoEvaluations(SmallTrial):
    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {}


class _TorchLoader(SmallTrial):
    def build_training_data_loader(self) -> Any:
        return torch.utils.data.DataLoader(self.dataset())


class _NoBatches(SmallTrial):
    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(self.dataset(), batch_size=64, drop_last=True)


class _OldApi(_NoModel):
    def build_model(self) -> torch.nn.Module:
        return torch.nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("trial_class", "arguments", "kind", "said"),
    [
        (_Plateau, {"max_length": Batch(1)}, ValueError, "needs a metric"),
        (_NoModel, {"max_length": Batch(1)}, TrialError, "wraps no model"),
        (_TwoEvaluations, {"max_length": Batch(1)}, TrialError, "has both of them"),
        (_TorchLoader, {"max_length": Batch(1)}, TrialError, "disable_dataset_reproducibility_checks"),
        (_NoBatches, {"max_length": Batch(1)}, TrialError, "without a single batch"),
        (_OldApi, {"max_length": Batch(1)}, TrialError, r"wraps no model.*build_model\(\)"),
        (SmallTrial, {"max_length": Batch([1, 2])}, ValueError, "single number"),
        (SmallTrial, {"max_length": 5}, TypeError, "max_length is 5"),
        (SmallTrial, {"max_length": Batch(1), "validation_period": 5}, TypeError, "validation_period is 5"),
        (SmallTrial, {"max_length": Batch(1), "checkpoint_policy": "some"}, ValueError, "best, all or none"),
        (SmallTrial, {"max_length": Batch(1), "test_mode": True}, ValueError, "outside of a trial"),
    ],
)
def test_wrong_trials_and_calls_say_what_to_do(
    trial: StubMaster,
    trial_class: type[SmallTrial],
    arguments: dict[str, Any],
    kind: type[Exception],
    said: str,
) -> None:
    with pytest.raises(kind, match=said):
        fit(trial_class, **arguments)


def test_a_missing_hyperparameter_names_the_nearest(trial: StubMaster) -> None:
    with pytorch.init(hparams={"learning_rate": 0.1, "global_batch_size": 8}) as context:
        with pytest.raises(TrialError, match="did you mean 'learning_rate'"):
            context.get_hparam("learning_rat")
        assert context.get_per_slot_batch_size() == context.get_global_batch_size() == 8
        assert context.get_data_config() == {"place": "here"}
        assert (context.get_trial_id(), context.get_experiment_id(), context.get_trial_seed()) == (2, 1, 77)


def test_a_metric_that_is_no_number_is_left_out(trial: StubMaster, caplog: pytest.LogCaptureFixture) -> None:
    rows: list[Any] = []

    class Odd(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            return super().train_batch(batch, epoch_idx, batch_idx) | {"phase": "warm-up"}

        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            class Keeps(pytorch.PyTorchCallback):
                def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
                    rows.extend(batch_metrics)

                def on_validation_epoch_end(self, outputs: list[Any]) -> None:
                    rows.append({"phase": "warm-up", "loss": outputs[0]["validation_loss"]})

            return {"keeps": Keeps()}

    fit(Odd, max_length=Batch(2), reporting_period=Batch(1))
    reports = [r["metrics"]["metrics"]["avgMetrics"] for r in trial.sent("/metrics")]
    assert [set(r) for r in reports[:2]] == [{"loss", "batch_idx", "batches", "epochs"}] * 2
    assert caplog.text.count("'phase' as 'warm-up'") == 1
    assert [row["phase"] for row in rows] == ["warm-up"] * 3
    assert all(row["loss"].item() > 0 for row in rows)  # NumPy's types, as callbacks know them


def test_what_older_releases_had_is_named_with_its_successor(trial: StubMaster) -> None:
    with pytorch.init() as context:
        with pytest.raises(AttributeError, match=r"context\.wrap_model\(model\)"):
            context.Model(torch.nn.Linear(1, 1))
        with pytest.raises(AttributeError, match="no attribute 'colour'"):
            context.colour  # noqa: B018
        with pytest.warns(FutureWarning, match=r"context\.wrap_reducer"):
            assert hasattr(context.experimental.wrap_reducer(sum, "items"), "update")
    with pytest.raises(AttributeError, match="load_trial_from_checkpoint_path"):
        pytorch.load("path")
    assert not hasattr(pytorch, "colour")


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    several = det.core.DummyDistributedContext()
    several.size = 2
    with pytest.raises(ValueError, match="trains in one"), pytorch.init(distributed=several):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun does
    with pytest.raises(ValueError, match="started in 2 processes"), pytorch.init():
        pass


def test_an_entrypoint_of_module_and_class_is_trained_by_the_config(
    trial: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"records": 96}},
        "min_validation_period": {"records": 48},
        "min_checkpoint_period": {"batches": 4},
        "perform_initial_validation": True,
        "scheduling_unit": 5,
        "checkpoint_policy": "none",
        "profiling": {"enabled": True},
        "optimizations": {"aggregation_frequency": 3, "average_aggregated_gradients": False},
    }
    environment = trial_environment(trial, tmp_path, **config)
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", environment["DET_EXPERIMENT_CONFIG"])
    made: list[Any] = []

    class Legacy(SmallTrial):
        clip = True

        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            made.append(self)

    monkeypatch.setattr("determined.exec.harness.import_class", lambda spec: Legacy)
    info = det.get_cluster_info()
    assert info is not None
    harness.run("model_def:Legacy", info)
    assert len(made[0].seen) == 12
    assert len(made[0].norms) == 4  # steps
    assert not made[0].context._averages_gradients[id(made[0].optimizer)]
    assert steps(trial, "validation") == [0, 6, 12]
    assert list(checkpoints(trial)) == [4, 8, 12]
    assert steps(trial, "training") == [4, 5, 6, 8, 10, 12]
    assert "cpu" in {r["group"] for r in trial.sent("/metrics")}
