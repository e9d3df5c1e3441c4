"""The names that training code imports are there, with the parameters that it gives."""

import inspect
import subprocess
import sys
from collections.abc import Iterator

import pytest

import determined as det
from determined import core
from determined.errors import TrialError
from harness.core_stub_master import StubMaster

TOP = """get_cluster_info ClusterInfo TrialInfo RendezvousInfo ResourcesInfo InvalidHP ExperimentConfig TrialContext
import_from_path LOG_FORMAT errors core __version__"""

CORE = """init Context TrainContext CheckpointContext PreemptContext SearcherContext SearcherContextMissing
SearcherOperation SearcherMode DistributedContext ProfilerContext ExperimentalCoreContext PreemptMode TensorboardMode EarlyExitReason DownloadMode Unit"""

SIGNATURES = {  # parameters without self; a star: what follows is given by name
    "core.init": "* distributed checkpoint_storage preempt_mode tensorboard_mode",
    "core.Context.start": "",
    "core.Context.close": "",
    "core.Context.alert": "title description level",
    "core.TrainContext.set_status": "status",
    "core.TrainContext.report_training_metrics": "steps_completed metrics batch_metrics",
    "core.TrainContext.report_validation_metrics": "steps_completed metrics",
    "core.TrainContext.report_metrics": "group steps_completed metrics",
    "core.TrainContext.report_progress": "progress",
    "core.TrainContext.report_early_exit": "reason",
    "core.TrainContext.get_experiment_best_validation": "",
    "core.TrainContext.set_metadata": "metadata",
    "core.TrainContext.get_metadata": "",
    "core.TrainContext.get_tensorboard_path": "",
    "core.TrainContext.upload_tensorboard_files": "selector mangler",
    "core.CheckpointContext.upload": "ckpt_dir metadata * shard selector",
    "core.CheckpointContext.store_path": "metadata * shard",
    "core.CheckpointContext.download": "storage_id ckpt_dir download_mode * selector",
    "core.CheckpointContext.restore_path": "storage_id download_mode * selector",
    "core.CheckpointContext.get_metadata": "storage_id",
    "core.CheckpointContext.delete": "storage_id",
    "core.PreemptContext.should_preempt": "auto_ack",
    "core.PreemptContext.acknowledge_preemption_signal": "",
    "core.PreemptContext.start": "",
    "core.PreemptContext.close": "",
    "core.SearcherContext.operations": "searcher_mode auto_ack",
    "core.SearcherContext.acknowledge_out_of_ops": "",
    "core.SearcherContext.get_configured_units": "",
    "core.SearcherOperation.report_progress": "length",
    "core.SearcherOperation.report_completed": "searcher_metric",
    "core.DistributedContext": "* rank size local_rank local_size cross_rank cross_size chief_ip pub_port pull_port"
    " port_offset force_tcp",
    "core.DistributedContext.from_torch_distributed": "chief_ip",
    "core.DistributedContext.from_horovod": "hvd chief_ip",
    "core.DistributedContext.from_deepspeed": "chief_ip",
    "core.DistributedContext.from_tf_config": "",
    **{f"core.DistributedContext.get_{what}": "" for what in ("rank", "local_rank", "size", "num_agents")},
    **{
        f"core.DistributedContext.{what}{where}": "stuff"
        for what in ("gather", "allgather", "broadcast")
        for where in ("", "_local")
    },
    "core.DistributedContext.close": "",
    "core.ProfilerContext.on": "sampling_interval samples_per_report",
    "core.ProfilerContext.off": "",
    "core.ExperimentalCoreContext.report_task_using_checkpoint": "checkpoint",
    "core.ExperimentalCoreContext.report_task_using_model_version": "model_version",
    "TrialContext.from_config": "config",
    "TrialContext.get_experiment_config": "",
    "TrialContext.get_data_config": "",
    "TrialContext.get_experiment_id": "",
    "TrialContext.get_trial_id": "",
    "TrialContext.get_trial_seed": "",
    "TrialContext.get_hparams": "",
    "TrialContext.get_hparam": "name",
    "TrialContext.get_stop_requested": "",
    "TrialContext.set_stop_requested": "stop_requested",
    "TrialContext.get_initial_batch": "",
    "TrialContext.get_tensorboard_path": "",
    "import_from_path": "path",
    "get_cluster_info": "",
}

MEMBERS = {
    core.PreemptMode: "WorkersAskChief ChiefOnly WorkersAskMaster",
    core.SearcherMode: "WorkersAskChief ChiefOnly",
    core.DownloadMode: "LocalWorkersShareDownload NoSharedDownload",
    core.TensorboardMode: "AUTO MANUAL",
    core.EarlyExitReason: "INVALID_HP USER_REQUESTED_STOP",
    core.Unit: "EPOCHS RECORDS BATCHES",
}

ATTRIBUTES = "train checkpoint preempt searcher distributed profiler experimental info"


def test_the_names_are_there() -> None:
    assert not [name for name in TOP.split() if not hasattr(det, name)]
    assert not [name for name in CORE.split() if not hasattr(core, name)]
    for kind, members in MEMBERS.items():
        assert {member.name for member in kind} == set(members.split())
    assert set(det.__all__) <= set(dir(det)) | {"TrialContext", "core"}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = det.nonsense


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_parameters_are_those_of_determined(name: str) -> None:
    found: object = det
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    assert list(_parameters(found)) == SIGNATURES[name].split()


def _parameters(function: object) -> Iterator[str]:
    star = False
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        if parameter.name != "self":
            yield parameter.name


def test_a_context_has_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    with core.init() as context:
        assert all(hasattr(context, name) for name in ATTRIBUTES.split())


def test_importing_them_imports_neither_torch_nor_the_master() -> None:
    code = (
        "import sys, determined as det; det.core.init, det.TrialContext, det.ExperimentConfig\n"
        "found = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not found & {'torch', 'numpy', 'tensorflow', 'detlab_master', 'detlab_agent'}, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


CONFIG = {
    "entrypoint": "model:Trial",
    "debug": True,
    "data": {"url": "here"},
    "checkpoint_storage": {"type": "shared_fs", "host_path": "/checkpoints"},
    "searcher": {"name": "random", "metric": "loss"},
    "resources": {"slots_per_trial": 2},
    "reproducibility": {"experiment_seed": 7},
    "min_validation_period": {"batches": 5},
    "hyperparameters": {
        "lr": {"type": "log", "base": 10, "minval": -3, "maxval": -1},
        "layers": {"type": "int", "minval": 2, "maxval": 4},
        "optimizer": {"type": "categorical", "vals": ["sgd", "adam"]},
        "nested": {"width": {"type": "const", "val": 64}, "rates": [1, 2]},
        "batch": 8,
    },
}


def test_a_config_answers_what_training_code_asks() -> None:
    config = det.ExperimentConfig(CONFIG)
    assert config == CONFIG
    assert config.debug_enabled() is True
    assert config.get_entrypoint() == "model:Trial"
    assert config.get_checkpoint_storage()["host_path"] == "/checkpoints"
    assert config.get_searcher_metric() == "loss"
    assert config.slots_per_trial() == 2
    assert config.experiment_seed() == 7
    assert config.get_min_validation_period() == {"batches": 5}
    empty = det.ExperimentConfig({})
    assert (empty.scheduling_unit(), empty.slots_per_trial(), empty.debug_enabled()) == (100, 1, False)
    assert (empty.get_min_checkpoint_period(), empty.get_optimizations_config()) == ({}, {})
    assert (empty.profiling_enabled(), empty.native_parallel_enabled()) == (False, False)
    assert (empty.get_records_per_epoch(), empty.averaging_training_metrics_enabled()) == (None, True)


def test_a_trial_class_can_be_tried_with_a_config_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    context = det.TrialContext.from_config(CONFIG)
    assert context.get_hparams() == {
        "lr": 0.001,
        "layers": 2,
        "optimizer": "sgd",
        "nested": {"width": 64, "rates": [1, 2]},
        "batch": 8,
    }
    assert context.get_hparam("layers") == 2
    with pytest.raises(TrialError, match="did you mean 'layers'"):
        context.get_hparam("layer")
    assert context.get_data_config() == {"url": "here"}
    assert context.get_experiment_config() == CONFIG
    assert (context.get_experiment_id(), context.get_trial_id(), context.get_initial_batch()) == (0, 0, 0)
    assert (context.get_trial_seed(), context.distributed.size) == (7, 1)
    assert context.get_stop_requested() is False
    context.set_stop_requested(True)
    assert context.get_stop_requested() is True
    with pytest.raises(TypeError):
        context.set_stop_requested("yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["PyTorchTrialContext", "CheckpointLoadContext"])
def test_so_can_a_pytorch_trial(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from determined import pytorch

    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    context = getattr(pytorch, kind).from_config(CONFIG)
    assert isinstance(context, det.TrialContext)
    assert (context.get_hparam("batch"), context.get_data_config()) == (8, {"url": "here"})


def test_in_a_trial_the_context_knows_it(trial: StubMaster) -> None:
    with core.init() as core_context:
        context = det.TrialContext(core_context, hparams={}, exp_conf={}, trial_seed=77)
        assert (context.get_experiment_id(), context.get_trial_id()) == (1, 2)
