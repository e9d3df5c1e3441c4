"""The law: a run that is cut anywhere and resumed ends just as one that was not, to the bit."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from determined import pytorch
from determined.pytorch import Batch, Epoch
from harness.pytorch.resume_trial import Crash, NoisyTrial, Setup, StepMode

# torch advises against more workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class PreemptsAt:
    """Says that the task is to end when it is asked for the n-th time, for n from 0."""

    def __init__(self, n: int) -> None:
        self._left = n

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def should_preempt(self, auto_ack: bool = True) -> bool:
        self._left -= 1
        return self._left < 0


def fit(
    setup: Setup, checkpoint: str | None = None, cut: tuple[str, int] | None = None
) -> tuple[dict[str, Any], str | None]:
    """One process of a training, up to its end or to the `cut`: preempted at a boundary, or crashed at a batch.

    Returns all that it leaves, and the newest checkpoint.
    """
    config = {"reproducibility": {"experiment_seed": 12}}
    with pytorch.init(exp_conf=config, aggregation_frequency=setup.aggregation) as context:
        if cut is not None and cut[0] == "preempted":
            context._core.preempt = PreemptsAt(cut[1])  # type: ignore[assignment]
        crash_at = cut[1] if cut is not None and cut[0] == "crashed" else None
        trial = NoisyTrial(context, setup, crash_at)
        with contextlib.suppress(Crash):
            pytorch.Trainer(trial, context).fit(
                max_length=Batch(setup.batches),
                reporting_period=setup.reporting,
                validation_period=setup.validation,
                checkpoint_period=setup.checkpoint,
                checkpoint_policy=setup.policy,  # type: ignore[arg-type]
                step_zero_validation=setup.step_zero,
                latest_checkpoint=checkpoint,
            )
        return trial.everything(), [checkpoint, *trial.checkpoints][-1]


periods = st.one_of(
    st.builds(Batch, st.integers(1, 5)),
    st.builds(Epoch, st.integers(1, 2)),
    st.builds(Batch, st.frozensets(st.integers(1, 16), min_size=1, max_size=4)),
)
schedules = st.one_of(
    st.tuples(
        st.sampled_from(["StepLR", "OneCycleLR", "CosineAnnealingWarmRestarts", "SequentialLR"]),
        st.sampled_from([mode.name for mode in StepMode]),
        st.integers(1, 3),
    ),
    st.just(("ReduceLROnPlateau", "MANUAL_STEP", 1)),
)
setups = st.builds(
    Setup,
    order=st.sampled_from(["shuffle", "plain", "generator", "weighted", "batches", "torch"]),
    workers=st.sampled_from([0, 0, 0, 2]),  # starting workers takes time
    batches=st.integers(3, 16),
    aggregation=st.integers(1, 3),
    precision=st.sampled_from(["float32", "amp", "own"]),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    optimizer=st.sampled_from(["SGD", "Adam", "AdamW"]),
    schedule=st.none() | schedules,
    clip=st.booleans(),
    passes=st.integers(1, 2),
    keep_gradients=st.booleans(),
    reporting=periods,
    validation=st.none() | periods,
    checkpoint=st.none() | periods,
    policy=st.sampled_from(["best", "all", "none"]),
    step_zero=st.booleans(),
)
cuts = st.tuples(st.sampled_from(["preempted", "preempted", "crashed"]), st.integers(0, 7))
EVERYTHING = Setup(
    order="weighted",
    workers=2,
    batches=16,
    aggregation=2,
    precision="own",
    dtype="float16",
    optimizer="AdamW",
    schedule=("OneCycleLR", "STEP_EVERY_OPTIMIZER_STEP", 1),
    clip=True,
    passes=2,
    keep_gradients=False,
    reporting=Batch(3),
    validation=Epoch(1),
    checkpoint=Batch(5),
    policy="best",
    step_zero=True,
)


@pytest.fixture(scope="module", autouse=True)
def off_cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DET_ALLOCATION_ID", raising=False)
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # more of them wait for each other where other processes compute, too
        yield
        torch.set_num_threads(threads)


def check(setup: Setup, first: tuple[str, int], second: tuple[str, int]) -> None:
    dtype = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", getattr(torch, setup.dtype))
    try:
        whole, _ = fit(setup)
        _, checkpoint = fit(setup, cut=first)
        _, checkpoint = fit(setup, checkpoint, cut=second)
        resumed, _ = fit(setup, checkpoint)
        assert resumed == whole
    finally:
        torch.set_autocast_dtype("cpu", dtype)


few, many = (
    settings(max_examples=n, deadline=None, suppress_health_check=[HealthCheck.too_slow]) for n in (25, 200)
)


@few
@example(setup=EVERYTHING, first=("preempted", 1), second=("preempted", 1))
@given(setup=setups, first=cuts, second=cuts)
def test_a_run_that_is_cut_twice_ends_as_one_that_was_not(
    setup: Setup, first: tuple[str, int], second: tuple[str, int]
) -> None:
    check(setup, first, second)


@pytest.mark.full
@pytest.mark.timeout(1200)
@many
@given(setup=setups, first=cuts, second=cuts)
def test_many_runs_that_are_cut_twice_end_as_those_that_were_not(
    setup: Setup, first: tuple[str, int], second: tuple[str, int]
) -> None:
    check(setup, first, second)


PROCESS = """
import dataclasses, os, sys
from harness.pytorch import test_pytorch_resume as t
class Killed(t.NoisyTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 8 and sys.argv[1] == "killed":
            os.kill(os.getpid(), 9)
        return super().train_batch(batch, epoch_idx, batch_idx)
    def build_callbacks(self):
        class Tells(t.pytorch.PyTorchCallback):
            def on_checkpoint_upload_end(self, uuid):
                print(uuid, flush=True)
        return {**super().build_callbacks(), "tells": Tells()}
t.NoisyTrial = Killed
t.torch.set_num_threads(1)
# Data workers of a killed process end some seconds later.
done, _ = t.fit(dataclasses.replace(t.EVERYTHING, workers=0), checkpoint=sys.argv[2] or None)
print(sorted(done.items()), sep="")
"""


def test_a_process_that_is_killed_and_another_that_goes_on(tmp_path: Path) -> None:
    """With nothing in common but the checkpoint."""

    def run(kind: str, checkpoint: str = "") -> list[str]:
        paths = {"PYTHONPATH": str(Path(__file__).parents[2]), "XDG_DATA_HOME": str(tmp_path)}
        command = [sys.executable, "-c", PROCESS, kind, checkpoint]
        ran = subprocess.run(
            command, env=os.environ | paths, capture_output=True, text=True, timeout=120, check=False
        )
        assert ran.returncode == (-signal.SIGKILL if kind == "killed" else 0), ran.stderr
        return ran.stdout.splitlines()

    whole, _ = fit(dataclasses.replace(EVERYTHING, workers=0))
    newest = run("killed")[-1]
    assert run("resumed", newest)[-1] == str(sorted(whole.items()))
