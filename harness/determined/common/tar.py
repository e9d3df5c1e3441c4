"""The `tarfile` that confines what it extracts: Python 3.11 has extraction filters only from 3.11.4 on."""

import sys

if sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile

__all__ = ["tarfile"]
