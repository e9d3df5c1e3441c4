"""Layers of configurations for property tests: parts that are right, in long forms and short ones, old and new."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy as Values

WORD = st.sampled_from(["a", "b", "c d", "ü", "", "'", "no", "2024-01-01"])
NAME = st.sampled_from(["a", "b", "c"])
SMALL = st.integers(0, 3)
FREE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1, 1) | WORD,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORD, inner, max_size=2),
    max_leaves=4,
)


def section(**keys: Values[Any]) -> Values[dict[str, Any]]:
    """An object with any of these keys, some of them null."""
    return st.fixed_dictionaries({}, optional={key: st.none() | value for key, value in keys.items()})


def unique(items: Values[Any], *keys: str) -> Values[list[Any]]:
    def identity(item: Any) -> Any:
        return tuple(str(item.get(key)) for key in keys) if isinstance(item, dict) else item

    return st.lists(items, max_size=3, unique_by=identity)


MOUNT = st.fixed_dictionaries(
    {"host_path": st.sampled_from(["/a", "/b"]), "container_path": NAME},
    optional={"read_only": st.booleans(), "propagation": st.none() | st.just("shared")},
)
DEVICE = st.builds(
    lambda host, to: {"host_path": host, "container_path": to},
    st.sampled_from(["/a", "/b"]),
    st.sampled_from(["/x", "/y"]),
)
POLICY = st.builds(
    lambda name, pattern, action: {"name": name, "pattern": pattern, "action": action},
    st.sampled_from(["CUDA OOM", "x", "y"]),
    st.sampled_from(["p", "q", None]),
    st.sampled_from(["cancel_retries", {"type": "exclude_node"}, None]),
)
VARIABLES = st.lists(st.sampled_from(["A=1", "A=2", "B=1", "PATH"]), max_size=3, unique=True)
PORT = st.builds(lambda port, tcp: {"proxy_port": port, "proxy_tcp": tcp}, st.integers(1, 3), st.booleans())
LENGTH = st.builds(lambda unit, n: {unit: n}, st.sampled_from(["batches", "records", "epochs"]), SMALL)
RANGE: Values[dict[str, Any]] = st.one_of(
    st.builds(
        lambda a, n: {"type": "int", "minval": a, "maxval": a + n, "count": 2}, SMALL, st.integers(1, 3)
    ),
    st.just({"type": "log", "base": 10, "minval": -3.5, "maxval": 0, "count": 2}),
    st.builds(lambda vals: {"type": "categorical", "vals": vals}, st.lists(FREE, min_size=1, max_size=2)),
    st.just(
        {"type": "categorical", "vals": [{"w": {"type": "double", "minval": 0, "maxval": 1, "count": 3}}]}
    ),
)
NESTED: Values[Mapping[str, Any]] = st.recursive(
    st.dictionaries(NAME, RANGE | WORD | SMALL, max_size=2),
    lambda inner: st.dictionaries(NAME, inner | RANGE | SMALL, max_size=2),
    max_leaves=3,
)
STORAGE = st.one_of(
    section(type=st.just("shared_fs"), storage_path=NAME, save_trial_best=SMALL),
    st.fixed_dictionaries({"type": st.just("s3"), "bucket": NAME}, optional={"save_trial_latest": SMALL}),
)
SEARCHER = st.one_of(
    section(metric=NAME, smaller_is_better=st.booleans()),
    st.builds(
        lambda name, trials, more: {"name": name, "max_trials": trials, **more},
        st.sampled_from(["random", "asha", "adaptive_asha", "adaptive_simple"]),
        st.integers(1, 5),
        section(metric=NAME, max_concurrent_trials=SMALL, time_metric=st.just("epochs"), max_time=st.just(7)),
    ),
    section(name=st.sampled_from(["single", "grid"]), max_length=st.integers(1, 3)),
)

LAYER = section(
    name=NAME,
    description=WORD,
    labels=st.lists(NAME, max_size=3),
    data=st.dictionaries(NAME, FREE, max_size=2),
    entrypoint=st.sampled_from(["run", ["run", "x"], "m:T"]),
    hyperparameters=NESTED,
    resources=section(
        slots_per_trial=SMALL,
        priority=st.integers(1, 99),
        shm_size=st.sampled_from([5, "1 GiB", "64m"]),
        devices=unique(DEVICE, "container_path") | st.just(["/a:/z:r"]),
        agent_label=NAME,
    ),
    environment=section(
        image=NAME | section(cpu=NAME, gpu=NAME, rocm=NAME),
        environment_variables=VARIABLES | section(cpu=VARIABLES, gpu=VARIABLES),
        proxy_ports=unique(PORT, "proxy_port"),
        ports=st.dictionaries(NAME, st.integers(1, 9), max_size=2),
        pod_spec=st.dictionaries(NAME, FREE, max_size=2),
    ),
    checkpoint_storage=STORAGE,
    bind_mounts=unique(MOUNT, "container_path"),
    log_policies=unique(POLICY, "name"),
    max_restarts=SMALL,
    min_validation_period=LENGTH | SMALL,
    batches_per_step=st.integers(1, 9),
    searcher=SEARCHER,
    slurm=section(sbatch_args=st.lists(NAME, max_size=2)),
    pbs=section(pbsbatch_args=st.lists(NAME, max_size=2)),
    preemption_timeout=SMALL,
    reproducibility=section(experiment_seed=SMALL),
)

CONTAINER = section(
    image=NAME,
    environment_variables=VARIABLES,
    bind_mounts=unique(MOUNT, "container_path"),
    devices=unique(DEVICE, "container_path"),
    log_policies=unique(POLICY, "name"),
    preemption_timeout=SMALL,
    slurm=section(sbatch_args=st.lists(NAME, max_size=2)),
    shm_size_bytes=SMALL,
    gpu_pod_spec=st.dictionaries(NAME, FREE, max_size=2),
    cpu_pod_spec=st.dictionaries(NAME, FREE, max_size=2),
)
