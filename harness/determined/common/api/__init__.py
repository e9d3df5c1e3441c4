"""Talking to the master: the HTTP session, its errors, paging, logging in."""

from determined.common.api import errors
from determined.common.api.address import canonical_master_url, master_from_environment
from determined.common.api.pagination import iterate
from determined.common.api.session import JSON, Session

__all__ = ["JSON", "Session", "canonical_master_url", "errors", "iterate", "master_from_environment"]
