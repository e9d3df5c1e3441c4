"""What the Core API offers beside training."""

import logging
from typing import TYPE_CHECKING, Any

from determined._info import ClusterInfo
from determined.common import api

if TYPE_CHECKING:
    from determined.experimental import Checkpoint, ModelVersion

logger = logging.getLogger("determined.core")


class ExperimentalCoreContext:
    """Get it as `core_context.experimental`."""

    def __init__(self, session: api.Session | None, info: ClusterInfo | None) -> None:
        """`session`: None where no trial runs."""
        self._session = session
        self._info = info

    def report_task_using_checkpoint(self, checkpoint: "Checkpoint") -> None:
        """Say that this trial works with a checkpoint, for example by predicting with it.

        What the trial reports is then found by `Checkpoint.get_metrics()`.
        """
        self._report({"checkpointUuid": checkpoint.uuid})

    def report_task_using_model_version(self, model_version: "ModelVersion") -> None:
        """Say that this trial works with a version of a registered model.

        What the trial reports is then found by `ModelVersion.iter_metrics()`, and by `get_metrics()` of its
        checkpoint.
        """
        self._report(
            {
                "checkpointUuid": model_version.checkpoint.uuid,
                "modelId": model_version.model_id,
                "modelVersion": model_version.model_version,
            }
        )

    def _report(self, source: dict[str, Any]) -> None:
        if self._session is None or self._info is None:
            logger.info("works with checkpoint %s", source["checkpointUuid"])
            return
        source |= {
            "trialId": self._info.trial.trial_id,
            "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
        }
        self._session.post("/api/v1/trial-source-info", json={"trialSourceInfo": source})
