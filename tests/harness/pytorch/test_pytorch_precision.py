"""Mixed precision and compiled models, on the CPU."""

import contextlib
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from determined import pytorch
from determined.errors import TrialError
from determined.pytorch import Batch, Record, data_length
from harness.pytorch.digits_trial import SmallTrial, seed


@pytest.fixture(autouse=True)
def off_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@contextlib.contextmanager
def autocast_type(dtype: torch.dtype) -> Any:
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", dtype)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before)


def fit(trial_class: Any, *, aggregation: int = 1, hparams: Any = None, **arguments: Any) -> Any:
    seed()
    with pytorch.init(aggregation_frequency=aggregation, hparams=hparams) as context:
        trial = trial_class(context)
        pytorch.Trainer(trial, context).fit(**arguments)
    return trial


class Amp(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.experimental.use_amp()
        self.types: set[torch.dtype] = set()
        self.model.register_forward_hook(lambda _, __, out: self.types.add(out.dtype))


@pytest.mark.parametrize(("dtype", "scaled"), [(torch.bfloat16, False), (torch.float16, True)])
def test_use_amp_computes_in_the_devices_type(dtype: torch.dtype, scaled: bool) -> None:
    with autocast_type(dtype):
        done = fit(Amp, max_length=Batch(4), aggregation=2)
    assert done.types == {dtype}
    assert done.context._amp_scaler.is_enabled() == scaled
    assert all(p.dtype == torch.float32 for p in done.model.parameters())


def test_steps_with_infinite_gradients_are_left_out() -> None:
    class Overflows(Amp):
        clip = True

        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context._amp_scaler._init_scale = 2.0**20  # type: ignore[union-attr]
            self.stepped: list[bool] = []

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            before = [p.clone() for p in self.model.parameters()]
            metrics = super().train_batch(batch, epoch_idx, batch_idx)
            self.stepped.append(not all(map(torch.equal, before, self.model.parameters())))
            return metrics

    with autocast_type(torch.float16):
        done = fit(Overflows, max_length=Batch(15))
    assert not done.stepped[0]
    assert done.stepped[-1]
    assert done.context._amp_scaler.get_scale() == 2.0 ** (20 - done.stepped.count(False))


def test_a_scaler_of_the_trials_own_is_updated_when_a_step_was_taken() -> None:
    class Own(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=4.0))
            super().__init__(context)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            _, x, y = batch
            with torch.autocast("cpu", torch.float16):
                loss = ((self.model(x).float() - y) ** 2).mean()
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, clip_grads=self._clip, scaler=self.scaler)
            self.scaler.update()
            return loss

    done = fit(Own, aggregation=3, max_length=Batch(7))
    assert done.scaler.state_dict()["_growth_tracker"] == 2
    assert all(norm < 100 for norm in done.norms)  # clipped after unscaling
    with pytest.raises(TrialError, match="its own scaler"), pytorch.init() as context:
        Own(context)
        context.experimental.use_amp()


def test_a_scaler_that_is_in_no_checkpoint_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Unwrapped(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            loss = self.model(batch[1]).square().mean()
            self.context.backward(scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, scaler=scaler)
            return loss

    fit(Unwrapped, max_length=Batch(3))
    assert caplog.text.count("wrap_scaler() does not know") == 1


def test_autocast_forward_pass_is_of_one_model() -> None:
    with pytorch.init() as context:
        first, second = (context.wrap_model(torch.nn.Linear(2, 1)) for _ in range(2))
        assert context.autocast_forward_pass(first) is first
        x = torch.ones(1, 2)
        assert (first(x).dtype, second(x).dtype) == (torch.bfloat16, torch.float32)
        with pytest.raises(TrialError, match="use_amp"):
            context.configure_apex_amp(first, None)


class Compiled(SmallTrial):
    """The whole model compiled, or one of its parts."""

    parts: tuple[str, ...] = ()

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        model: Any = context.models.pop()
        if "inner" in self.parts:
            model[0] = torch.compile(model[0], backend="eager")
        if "outer" in self.parts:
            model = torch.compile(model, backend="eager")
        self.model = context.wrap_model(model)


@pytest.mark.parametrize("parts", list(itertools.permutations([(), ("inner",), ("outer",)], 2)))
def test_checkpoints_fit_with_and_without_compiling(
    parts: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Before(Compiled):
        pass

    class After(Compiled):
        pass

    Before.parts, After.parts = parts
    whole = fit(Before, max_length=Batch(6))
    first = fit(Before, max_length=Batch(6), checkpoint_period=Batch(4))
    uuid = next(call[1] for call in first.recorder.calls if call[0] == "upload_end")
    resumed = fit(After, max_length=Batch(6), latest_checkpoint=uuid)
    assert resumed.seen == whole.seen[4:]
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))


def test_checkpoints_carry_plain_names(tmp_path: Path) -> None:
    class Both(Compiled):
        parts = ("inner", "outer")

    done = fit(Both, max_length=Batch(1))
    uuid = next(call[1] for call in done.recorder.calls if call[0] == "upload_end")
    [file] = tmp_path.rglob(f"{uuid}/state_dict.pth")
    [state] = torch.load(file)["models_state_dict"]
    assert list(state) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    plain = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
    plain.load_state_dict(state)

    class Outer(Compiled):
        parts = ("outer",)

    loaded: Any = pytorch.load_trial_from_checkpoint_path(file.parent, trial_class=Outer)
    assert all(map(torch.equal, loaded.model.parameters(), done.model.parameters()))


def test_periods_in_records() -> None:
    class Counts(SmallTrial):
        pass

    done = fit(
        Counts,
        hparams={"global_batch_size": 8},
        max_length=Record(80),
        reporting_period=Record(16),
        validation_period=Record([1, 40]),
        checkpoint_period=Record(lambda records: records == 24),
        checkpoint_policy="none",
    )
    assert len(done.seen) == 10
    names = [call[0] for call in done.recorder.calls]
    # reports after 1, 2, 3, 4, 5, 6, 8 and 10 batches; validations after 1, 5 and 10; checkpoints after 3 and 10
    assert [names.count(n) for n in ("workload_end", "validation_end", "upload_end")] == [8, 3, 2]
    with pytest.raises(TrialError, match="global_batch_size"):
        fit(Counts, max_length=Batch(1), validation_period=Record(5))


def test_hooks_that_do_not_exist_and_older_ones(caplog: pytest.LogCaptureFixture) -> None:
    class Old(pytorch.PyTorchCallback):
        epochs = 0

        def on_training_epoch_start(self) -> None:  # type: ignore[override]
            Old.epochs += 1

        def on_train_epoch_end(self, epoch_idx: int) -> None:
            raise AssertionError

    class Hooked(SmallTrial):
        def build_callbacks(self) -> Any:
            return {"old": Old()}

    fit(Hooked, max_length=Batch(8))
    assert Old.epochs == 2
    assert (
        "defines on_train_epoch_end(), which is never called: did you mean on_training_epoch_end()?"
        in caplog.text
    )
    Hooked.build_callbacks = lambda self: [Old()]  # type: ignore[method-assign]
    with pytest.raises(TrialError, match="dict of PyTorchCallbacks"):
        fit(Hooked, max_length=Batch(1))


def test_the_length_of_a_batch() -> None:
    assert data_length(torch.ones(3, 2)) == 3
    assert data_length([torch.ones(4), torch.ones(5)]) == 4
    assert data_length({"x": {"y": torch.ones(6)}, "z": 1}) == 6
    assert data_length({"texts": ["a", "b"]}) == 2
    for unknown in (object(), [], torch.tensor(1.0)):
        with pytest.raises(TypeError, match="override get_batch_length"):
            data_length(unknown)


def test_the_log_says_how_fast_it_goes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("determined.pytorch._throughput.LOG_SECONDS", 0.0)

    class Odd(SmallTrial):
        def get_batch_length(self, batch: Any) -> int:
            return 1000

    with caplog.at_level(logging.INFO):
        fit(Odd, max_length=Batch(4), reporting_period=Batch(2))
    lines = [r.message for r in caplog.records if r.message.startswith("trained on 2 batches")]
    assert len(lines) == 2
    assert "records/s" in lines[0]


def test_two_optimizers_with_one_scaler_resume() -> None:
    """As of a generator and a discriminator, whose gradients the other's loss adds to."""

    class Two(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.experimental.use_amp()
            self.critic = context.wrap_model(torch.nn.Linear(1, 1))
            self.second = context.wrap_optimizer(torch.optim.Adam(self.critic.parameters(), lr=0.01))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = self.critic(self.model(batch[1])).square().mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            if batch_idx % 2:
                self.context.step_optimizer(self.second)
            return loss

    with autocast_type(torch.float16):
        whole = fit(Two, max_length=Batch(10), aggregation=1)
        first = fit(Two, max_length=Batch(10), checkpoint_period=Batch(5), aggregation=1)
        uuid = next(call[1] for call in first.recorder.calls if call[0] == "upload_end")
        resumed = fit(Two, max_length=Batch(10), latest_checkpoint=uuid)
    for name in ("model", "critic"):
        parameters = zip(getattr(whole, name).parameters(), getattr(resumed, name).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in parameters)
    scales = [trial.context._amp_scaler.state_dict() for trial in (whole, resumed)]
    assert scales[0] == scales[1]
    assert 0 < scales[0]["_growth_tracker"] < 10
