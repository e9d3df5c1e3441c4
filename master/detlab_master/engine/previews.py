"""What a search would do, without an experiment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detlab_master.core.errors import Invalid
from detlab_master.core.expconf import parse_experiment_config, parse_object, resolve
from detlab_master.core.records import Json
from detlab_master.core.searchers.preview import Planned, TooManyTrials, preview
from detlab_master.engine.submissions import ClusterDefaults


@dataclass(frozen=True)
class SearchPreview:
    searcher: Json  # the section of the complete configuration
    trials: list[Planned]
    warnings: list[str]  # for people


class Previews:
    """Plays searches through. Nothing is kept.

    Args:
        defaults: what the cluster adds to configurations.
    """

    def __init__(self, defaults: ClusterDefaults) -> None:
        self._defaults = defaults

    async def search(self, submitted: str | Mapping[str, Any], seed: int | None) -> SearchPreview:
        """The trials that a configuration, as YAML or as JSON values, would give.

        Args:
            seed: of the draws; without one, that of the configuration, or 0.

        Raises:
            ConfigErrors: the configuration is wrong; all that is wrong with it, by path.
            Invalid: the search is too large to be played through.
        """
        return await asyncio.to_thread(self._search, submitted, seed)  # it takes its time

    def _search(self, submitted: str | Mapping[str, Any], seed: int | None) -> SearchPreview:
        parsed = parse_experiment_config(submitted) if isinstance(submitted, str) else parse_object(submitted)
        resolved = resolve(
            parsed,
            defaults=dict(self._defaults.config),
            experiment_seed=0,
            default_name="preview",
            unmanaged=True,  # it need not run
        )
        if seed is None:
            seed = resolved.config.reproducibility.experiment_seed
        try:
            trials = preview(resolved.config.searcher, resolved.space, random.Random(seed))
        except TooManyTrials as error:
            raise Invalid(str(error)) from None
        return SearchPreview(resolved.as_dict["searcher"], trials, resolved.warnings)
