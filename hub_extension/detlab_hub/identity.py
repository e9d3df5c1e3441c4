"""The Hub's users are the master's users, by the same name, and the Hub's admins are its admins.

The master learns of a user with their first server. Besides that, UserSync tells it what changes in the Hub, and
MasterUsers, which goes in front of any authenticator, takes care of users that the Hub deletes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator  # type: ignore[import-untyped]
from jupyterhub.authenticators.shared import SharedPasswordAuthenticator  # type: ignore[import-untyped]
from tornado.web import HTTPError
from traitlets import Unicode

from detlab_spawner.client import MasterClient, MasterUnavailable, Refused, UnknownServer


class MasterUsers(Authenticator):  # type: ignore[misc]  # jupyterhub has no types
    """A user whom the Hub deletes can use the master no longer."""

    master_url = Unicode("http://127.0.0.1:8080", help="Where the Hub reaches the master.").tag(config=True)
    hub_token_file = Unicode(
        help="The file with the master's token for the Hub: hub-token in its data folder."
    ).tag(config=True)

    async def delete_user(self, user: Any) -> None:
        """Called before the Hub deletes a user, which it does not while the master cannot be told."""
        try:
            await MasterClient(self.master_url, Path(self.hub_token_file)).put_user(
                user.name, admin=False, active=False
            )
        except (MasterUnavailable, UnknownServer, Refused) as error:
            raise HTTPError(
                503, f"{user.name} was not deleted: the master must be told, too. {error} Try again."
            ) from None
        super().delete_user(user)


class DetlabAuthenticator(MasterUsers, SharedPasswordAuthenticator):  # type: ignore[misc]
    """The login of an installation on one machine: generated passwords, see configuration.py."""


class UserSync:
    """Tells the master whom the Hub has made an admin, or no longer one; each only when it has changed."""

    def __init__(self, client: MasterClient) -> None:
        self._client = client
        self._told: dict[str, bool] = {}

    async def tell(self, users: Iterable[tuple[str, bool]]) -> None:
        """`users`: names, and whether they are admins.

        Raises:
            MasterUnavailable: those that were not told are told the next time.
            Refused: likewise.
        """
        for name, admin in users:
            if self._told.get(name) != admin:
                await self._client.put_user(name, admin=admin)
                self._told[name] = admin
