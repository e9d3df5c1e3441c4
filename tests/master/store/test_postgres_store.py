"""The store on a PostgreSQL server that goes away and comes back."""

from __future__ import annotations

import threading

import pytest

from contracts.store_examples import commit, family, report, trial, user
from detlab_master.store.base import StoreConflict, StoreUnavailable
from detlab_master.store.sql import open_store
from detlab_master.store.writes import InsertReport, SaveTrial, SaveUser
from support.postgres import PostgresServer

pytestmark = pytest.mark.full


def test_a_lost_connection_is_unavailable_and_the_next_call_connects_again(postgres: PostgresServer) -> None:
    store = open_store(postgres.new_database())
    commit(store, SaveUser(user(1)))
    assert store.users.get(1) == user(1)
    postgres.stop()
    try:
        with pytest.raises(StoreUnavailable):
            commit(store, SaveUser(user(2)))
        with pytest.raises(StoreUnavailable):
            store.users.get(1)
    finally:
        postgres.start()
    commit(store, SaveUser(user(3)))
    assert store.users.all() == [user(1), user(3)]
    store.close()


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot open postgresql\+psycopg2://me:\*\*\*@127.0.0.1:1/x"):
        open_store("postgresql://me:secret@127.0.0.1:1/x")


def test_two_masters_that_start_at_once_make_the_tables_once(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    together = threading.Barrier(4)
    ids: list[str] = []

    def start() -> None:
        together.wait(timeout=30)
        store = open_store(url)
        ids.append(store.cluster_id())
        store.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 4
    assert len(set(ids)) == 1


def test_a_value_that_cannot_be_stored_costs_only_its_own_transaction(postgres: PostgresServer) -> None:
    store = open_store(postgres.new_database())
    commit(store, *family())
    bad = [
        store.commit([InsertReport(report(1, metrics={"loss": float("nan")}))]),
        store.commit([InsertReport(report(1 << 70))]),
        store.commit([SaveUser(user(username="nul \0"))]),
        store.commit([SaveTrial(trial(hparams={"text": "nul \0"}))]),
    ]
    good = store.commit([InsertReport(report(1))])
    for future in bad:
        with pytest.raises(StoreConflict):
            future.result(timeout=30)
    good.result(timeout=30)
    assert store.trials.get(1) == trial()
    store.close()
