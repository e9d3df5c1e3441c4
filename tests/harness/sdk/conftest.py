"""The stub master for the tests of this folder."""

from harness.api_stub import master

__all__ = ["master"]
