"""What can go wrong around training, each with a text for people.

InvalidHP                    the trial's hyperparameters make no sense; raised by user code
DeterminedError
├── ClusterInfoError         the environment of a task is incomplete or unreadable
├── StorageError             a checkpoint storage cannot be used, or its configuration is wrong
│   └── CheckpointNotFound   it holds no checkpoint of that name
├── ContextError             a model folder that must not be unpacked
├── PreparationError         a task could not be made ready to run
├── DistributedError         the processes of one training have lost each other
└── TrialError               a trial class or a training call that breaks the rules

Failures in talking to the master are in `determined.common.api.errors`.
"""


class InvalidHP(Exception):
    """Raise this while training to reject the trial's hyperparameters.

    Within `core.init()` or `pytorch.init()` the trial ends without an error, is not restarted, and the
    search puts another one in its place.
    """


class DeterminedError(Exception):
    """Everything that this package raises on its own account."""


class ClusterInfoError(DeterminedError):
    """The variables that describe a task are missing or cannot be read."""


class StorageError(DeterminedError):
    """The checkpoint storage cannot be used as configured."""


class CheckpointNotFound(StorageError):
    """The storage holds no (complete) checkpoint of that name."""


class ContextError(DeterminedError):
    """An archive of a model folder holds something that would be written outside of its folder."""


class PreparationError(DeterminedError):
    """A task could not be made ready to run."""


class DistributedError(DeterminedError):
    """A process of a distributed training is gone or out of step; the others cannot go on without it."""


class TrialError(DeterminedError):
    """A trial class or a call of the training API breaks its rules."""
