"""The Hub's users in the master."""

from __future__ import annotations

import asyncio

from detlab_master.engine.clock import Ids
from detlab_master.engine.identity import Identity
from detlab_master.store.memory import MemoryStore


async def test_what_the_hub_repeats_at_once_makes_one_user() -> None:
    store = MemoryStore()
    identity = Identity(store, Ids(store.highest_ids()), agent_token="a", hub_token="h", passwords=False)
    made = await asyncio.gather(
        *[identity.upsert_hub_user("ada", admin=None, active=True) for _ in range(8)],
        identity.upsert_hub_user("ada", admin=True, active=True),
    )
    assert len({user.id for user in made}) == 1
    (ada,) = store.users.all()
    assert (ada.username, ada.admin, ada.remote) == ("ada", True, True)
