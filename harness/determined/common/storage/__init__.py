"""Where checkpoints are kept: one folder per checkpoint, complete or not there at all."""

from determined.common.storage.base import Selector, StorageManager, from_config, from_string, validate
from determined.common.storage.directory import DirectoryStorage, check, copy_files, list_files
from determined.common.storage.manifest import MANIFEST, Files

__all__ = [
    "MANIFEST",
    "DirectoryStorage",
    "Files",
    "Selector",
    "StorageManager",
    "check",
    "copy_files",
    "from_config",
    "from_string",
    "list_files",
    "validate",
]
