"""Users."""

from __future__ import annotations

from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.core.records import User


def user(record: User) -> Object:
    """v1User. Nobody is linked with a Unix account by hand here: tasks run under one of the agent's choosing."""
    return {
        "id": record.id,
        "username": record.username,
        "admin": record.admin,
        "active": record.active,
        "displayName": record.display_name,
        "remote": record.remote,
        "agentUserGroup": None,
        "modifiedAt": timestamp(record.modified_at),
        "lastAuthAt": timestamp(record.last_auth_at),
    }
