"""Laws of merging, of defaults and of round trips."""

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from detlab_master.core.expconf import ConfigErrors, Resolved, parse_experiment_config, resolve, restore
from detlab_master.core.expconf.json_schema import json_schema
from detlab_master.core.expconf.merge import merge
from detlab_master.core.expconf.shorthand import write_out
from master.core.expconf.layers import CONTAINER, LAYER

VALIDATOR = Draft7Validator(json_schema())
MANY = settings(max_examples=100, deadline=None)
WRITTEN = LAYER.map(write_out)
COMPLETE = {"entrypoint": "run", "searcher": {"name": "single", "metric": "loss"}}
DEFAULTS = st.fixed_dictionaries(
    {"checkpoint_storage": st.just({"type": "shared_fs", "host_path": "/ckpt"})},
    optional={
        "task_container_defaults": CONTAINER,
        "pools": st.builds(
            lambda container: {"": {"task_container_defaults": container, "default_priority": 41}}, CONTAINER
        ),
        "default_priority": st.just(42),
        "workspace_checkpoint_storage": st.just({"type": "directory", "container_path": "/w"}),
    },
)


def submit(config: dict[str, Any], **more: Any) -> Resolved | None:
    """What it gives; None where it is refused."""
    try:
        return resolve(config, experiment_seed=77, default_name="brave-blue-whale", **more)
    except ConfigErrors:
        return None


def one_kind(layer: dict[str, Any]) -> dict[str, Any]:
    """Without what is only joined from the highest layer down: sections of several kinds, hyperparameters and pods,
    where a scalar in the middle hides what is below it, and arguments, which are not put before themselves."""
    gone = ("searcher", "checkpoint_storage", "hyperparameters", "slurm", "pbs")
    rest = {key: value for key, value in layer.items() if key not in gone}
    if "environment" in rest:
        rest["environment"] = {k: v for k, v in rest["environment"].items() if k != "pod_spec"}
    return rest


@MANY
@given(WRITTEN)
def test_nothing_changes_nothing_and_neither_does_itself(layer: dict[str, Any]) -> None:
    assert merge(layer, {}) == layer == merge({}, layer) == merge(layer, layer)


@MANY
@given(WRITTEN, WRITTEN, WRITTEN)
def test_merging_is_associative_where_each_section_is_of_one_kind(
    a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]
) -> None:
    a, b, c = one_kind(a), one_kind(b), one_kind(c)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@MANY
@given(WRITTEN, WRITTEN)
def test_merging_twice_is_merging_once(a: dict[str, Any], b: dict[str, Any]) -> None:
    once = merge(a, b)
    assert merge(once, b) == once
    assert merge(a, once) == once or set(a) & {"searcher", "checkpoint_storage", "slurm", "pbs"}


@MANY
@given(WRITTEN, WRITTEN)
def test_what_the_higher_layer_sets_stays_and_nothing_is_invented(
    high: dict[str, Any], low: dict[str, Any]
) -> None:
    merged = merge(high, low)
    assert set(merged) == set(high) | set(low)
    for key, value in high.items():
        if not isinstance(value, dict | list):
            assert merged[key] == value
        if isinstance(value, list) and key in ("bind_mounts", "log_policies"):
            assert [item for item in merged[key] if item in value] == value
    for key in set(low) - set(high):
        assert merged[key] == low[key]


@MANY
@given(LAYER, LAYER, DEFAULTS)
def test_resolving_is_a_fixpoint(
    layer: dict[str, Any], template: dict[str, Any], defaults: dict[str, Any]
) -> None:
    resolved = submit({**COMPLETE, **layer}, template=template, defaults=defaults)
    if resolved is None:
        return
    for again in (
        submit(resolved.as_dict, template=template, defaults=defaults),
        submit(resolved.as_dict, defaults=defaults),
    ):
        assert again is not None
        assert again.as_dict == resolved.as_dict
        assert again.space == resolved.space


@MANY
@given(LAYER, DEFAULTS)
def test_round_trips(layer: dict[str, Any], defaults: dict[str, Any]) -> None:
    resolved = submit({**COMPLETE, **layer}, defaults=defaults)
    if resolved is None:
        return
    kept = resolved.as_dict
    assert parse_experiment_config(yaml.safe_dump(kept, allow_unicode=True)) == kept
    assert parse_experiment_config(json.dumps(kept, ensure_ascii=False)) == kept
    assert restore(json.loads(json.dumps(kept))) == resolved.config
    assert restore(kept).model_dump(mode="json") == kept


@MANY
@given(LAYER, LAYER, DEFAULTS)
def test_a_layer_that_is_taken_is_right_by_the_schema(
    layer: dict[str, Any], template: dict[str, Any], defaults: dict[str, Any]
) -> None:
    resolved = submit({**COMPLETE, **layer}, template=template, defaults=defaults)
    if resolved is not None:
        for part in (layer, template, resolved.as_dict):
            assert not list(VALIDATOR.iter_errors(part))


@MANY
@given(LAYER, DEFAULTS)
def test_most_layers_are_taken_and_the_others_are_refused_in_words(
    layer: dict[str, Any], defaults: dict[str, Any]
) -> None:
    try:
        resolve({**COMPLETE, **layer}, defaults=defaults, experiment_seed=1, default_name="x")
    except ConfigErrors as refused:
        for error in refused.errors:
            assert error.path.startswith("<config>.")
            assert error.message.endswith((".", "?", ")")), error
