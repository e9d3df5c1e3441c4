"""The entry points of a trial, as an agent starts them: real processes against a small master."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from determined.errors import PreparationError
from determined.exec.accelerators import visible_gpu_uuids
from determined.exec.launch import entrypoint_argv
from harness.core_stub_master import StubMaster, tar_gz, trial_environment


def start(master: StubMaster, folder: Path, config: dict[str, Any], **env: str) -> subprocess.Popen[str]:
    (folder / "run" / "workdir").mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "determined.exec.trial"],
        env={"PATH": os.defpath, "HOME": str(folder), **trial_environment(master, folder, **config), **env},
        cwd=folder / "run" / "workdir",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_trial_is_prepared_and_its_entrypoint_runs(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz(
        {"train.py": "import helper, sys; print(helper.NAME, sys.argv[1])", "helper.py": "NAME = 'me'"}
    )
    code, out, err = finish(start(master, tmp_path, {"entrypoint": "python3 train.py arg; exit 7"}))
    assert (code, out, err) == (7, "me arg\n", "")
    paths = [r.path for r in master.requests]
    assert paths == [
        "/api/v1/tasks/1.task/context_directory",
        "/api/v1/allocations/1.task.1/acceleratorData",
        "/api/v1/allocations/1.task.1/resources/resources/rendezvous",
    ]
    assert master.requests[1].body["acceleratorData"]["acceleratorType"] in ("cpu", "cuda")
    assert (tmp_path / "run" / "train" / "model" / "helper.py").exists()
    assert (tmp_path / "run" / "info" / "rendezvous.json").exists()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_list_is_the_command_itself_and_finds_our_python(master: StubMaster, tmp_path: Path) -> None:
    entrypoint = ["python3", "-c", "import sys; print(sys.prefix, sys.argv[1:])", "$HOME", "a b"]
    code, out, _ = finish(start(master, tmp_path, {"entrypoint": entrypoint}))
    assert (code, out) == (0, f"{sys.prefix} ['$HOME', 'a b']\n")


def test_the_startup_hook_is_sourced_before(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz({"startup-hook.sh": "export FROM_HOOK=yes\necho hooked\n"})
    code, out, _ = finish(start(master, tmp_path, {"entrypoint": "echo $FROM_HOOK"}))
    assert (code, out) == (0, "hooked\nyes\n")


def test_a_failing_hook_ends_the_trial(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz({"startup-hook.sh": "false\necho not reached\n"})
    code, out, _ = finish(start(master, tmp_path, {"entrypoint": "echo not reached"}))
    assert (code, out) == (1, "")


def test_signals_reach_the_entrypoint(master: StubMaster, tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = start(master, tmp_path, {"entrypoint": ["python3", "-c", program]})
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 42


@pytest.mark.parametrize(
    ("config", "env", "said"),
    [
        ({}, {"DET_SESSION_TOKEN": "wrong"}, "no token"),
        ({}, {"DET_TRIAL_ID": "x"}, "DET_TRIAL_ID is 'x'"),
        ({}, {"DET_ALLOCATION_ID": ""}, "DET_ALLOCATION_ID is not set"),
        ({"entrypoint": None}, {}, "entrypoint is None"),
        ({"entrypoint": ["/no/such/program"]}, {}, "No such file"),
        (
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/dev/null/x"}},
            {},
            "cannot write the checkpoint",
        ),
        ({"checkpoint_storage": {"type": "gcs"}}, {}, "checkpoint_storage.type"),
    ],
)
def test_what_goes_wrong_before_is_one_line(
    master: StubMaster, tmp_path: Path, config: dict[str, Any], env: dict[str, str], said: str
) -> None:
    code, _, err = finish(start(master, tmp_path, config, **env))
    assert code == (127 if "No such file" in said else 1)
    assert said in err
    assert err.startswith("ERROR: ")
    assert err.count("\n") == 1


def test_a_context_that_attacks_is_refused_in_one_line(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz({"../../evil": "x"})
    code, _, err = finish(start(master, tmp_path, {}))
    assert (code, err.count("\n")) == (1, 1)
    assert "'../../evil', which would be written outside of it" in err
    assert not (tmp_path / "evil").exists()


MODEL = """
import torch
import determined as det
from determined import pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        if context.get_hparam("global_batch_size") == 666:
            raise det.InvalidHP("an unlucky number")
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(2, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(torch.ones(32, 2))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())
    build_validation_data_loader = build_training_data_loader
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch[0]).mean() ** 2
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch):
        return {"validation_loss": self.model(batch[0]).mean() ** 2}
"""

LEGACY = {
    "entrypoint": "model_def:Trial",
    "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"epochs": 2}},
    "scheduling_unit": 2,
    "min_validation_period": {"batches": 3},
    "min_checkpoint_period": {"records": 40},
    "checkpoint_policy": "none",
    "perform_initial_validation": True,
    "optimizations": {"aggregation_frequency": 2},
}


def test_a_trial_class_is_trained_as_the_config_says(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz({"model_def.py": MODEL})
    code, _, err = finish(start(master, tmp_path, LEGACY))
    assert code == 0, err
    steps: dict[str, list[int]] = {"training": [], "validation": []}
    for report in master.sent("/metrics"):
        steps[report["group"]].append(report["metrics"]["stepsCompleted"])
    assert steps == {"training": [2, 3, 4, 5, 6, 8], "validation": [0, 3, 6, 8]}
    reported = master.sent("/checkpoints")
    assert [r["metadata"]["steps_completed"] for r in reported] == [5, 8]
    assert "code/model_def.py" in reported[-1]["resources"]


def test_a_trial_class_goes_on_after_preemption(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz({"model_def.py": MODEL})
    master.preempt.set()
    code, _, err = finish(start(master, tmp_path, LEGACY))
    assert code == 0, err
    [checkpoint] = master.sent("/checkpoints")
    assert checkpoint["metadata"]["steps_completed"] == 2
    master.preempt.clear()
    master.requests.clear()
    code, _, err = finish(
        start(master, tmp_path, LEGACY, DET_LATEST_CHECKPOINT=checkpoint["uuid"], DET_STEPS_COMPLETED="2")
    )
    assert code == 0, err
    first = next(r for r in master.sent("/metrics") if r["group"] == "training")
    assert first["metrics"]["stepsCompleted"] == 3


def test_a_trial_class_with_invalid_hyperparameters(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz({"model_def.py": MODEL})
    code, _, err = finish(start(master, tmp_path, LEGACY, DET_HPARAMS='{"global_batch_size": 666}'))
    assert code == 0, err
    assert master.sent("/early_exit") == [{"reason": "EXITED_REASON_INVALID_HP"}]


@pytest.mark.parametrize(
    ("source", "entrypoint", "said"),
    [
        ("", "nowhere:Trial", "names the module 'nowhere'"),
        ("x = 1", "model_def:Trial", "model_def has no 'Trial'"),
        ("class Trial: pass", "model_def:Trial", "not a PyTorchTrial"),
        ("import nothing_of_this_name", "model_def:Trial", "No module named 'nothing_of_this_name'"),
    ],
)
def test_a_trial_class_that_cannot_be_loaded(
    master: StubMaster, tmp_path: Path, source: str, entrypoint: str, said: str
) -> None:
    master.context = tar_gz({"model_def.py": source})
    code, _, err = finish(start(master, tmp_path, {**LEGACY, "entrypoint": entrypoint}))
    assert code == 1
    assert said in err.splitlines()[-1]


def test_a_config_without_a_length_says_what_to_set(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz({"model_def.py": MODEL})
    code, _, err = finish(start(master, tmp_path, {"entrypoint": "model_def:Trial"}))
    assert code == 1
    assert err.splitlines()[-1].startswith("ERROR: the experiment config does not say how long to train")


def test_the_launcher_runs_a_command_or_a_trial(master: StubMaster, tmp_path: Path) -> None:
    master.context = tar_gz({"model_def.py": MODEL, "train.py": "print('trained')"})
    for entrypoint, expected in [
        ("python3 -m determined.launch.torch_distributed python3 train.py", "trained\n"),
        ("python3 -m determined.launch.torch_distributed -- train.py", "trained\n"),
        ("python3 -m determined.launch.torch_distributed --trial model_def:Trial", ""),
    ]:
        code, out, err = finish(start(master, tmp_path, {**LEGACY, "entrypoint": entrypoint}))
        assert (code, out) == (0, expected), err
    assert master.sent("/checkpoints")
    code, _, err = finish(
        start(master, tmp_path, {"entrypoint": "python3 -m determined.launch.torch_distributed"})
    )
    assert code == 2
    assert "give a command, or --trial" in err


def test_a_script_asks_the_launcher_for_its_ranks_whatever_the_slots(
    master: StubMaster, tmp_path: Path
) -> None:
    master.context = tar_gz(
        {
            "train.py": "from determined import core\n"
            "d = core.DistributedContext.from_torch_distributed()\n"
            "print(d.rank, d.size, d.allgather('me'))\n"
        }
    )
    entrypoint = "python3 -m determined.launch.torch_distributed train.py"
    assert finish(start(master, tmp_path, {"entrypoint": entrypoint})) == (0, "0 1 ['me']\n", "")


@pytest.mark.parametrize(
    ("entrypoint", "argv"),
    [
        (["a", "b c"], ["a", "b c"]),
        ("a.b:Class", [sys.executable, "-m", "determined.exec.harness", "a.b:Class"]),
        ("python3 train.py --x a:b", ["sh", "-c", "python3 train.py --x a:b"]),
    ],
)
def test_entrypoints(entrypoint: Any, argv: list[str]) -> None:
    assert entrypoint_argv(entrypoint) == argv


@pytest.mark.parametrize("entrypoint", [None, "", " ", [], [1], {"a": "b"}])
def test_wrong_entrypoints(entrypoint: Any) -> None:
    with pytest.raises(PreparationError, match="entrypoint is"):
        entrypoint_argv(entrypoint)


def test_gpus_are_those_that_the_task_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0, GPU-aaa\\n1, GPU-bbb\\n2, GPU-ccc\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    assert visible_gpu_uuids({}) == ["GPU-aaa", "GPU-bbb", "GPU-ccc"]
    assert visible_gpu_uuids({"CUDA_VISIBLE_DEVICES": "2,0"}) == ["GPU-ccc", "GPU-aaa"]
    assert visible_gpu_uuids({"CUDA_VISIBLE_DEVICES": "GPU-b"}) == ["GPU-bbb"]
    assert visible_gpu_uuids({"CUDA_VISIBLE_DEVICES": ""}) == []
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpu_uuids({}) == []
