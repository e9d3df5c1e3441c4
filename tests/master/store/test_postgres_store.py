"""The store on a PostgreSQL server that goes away and comes back."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from contracts.store_examples import commit, family, report, trial, user
from detlab_master.store.base import StoreConflict, StoreUnavailable
from detlab_master.store.sql import open_store
from detlab_master.store.writes import InsertReport, SaveTrial, SaveUser
from support.cluster import wait_for
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


@pytest.mark.parametrize("kept", [True, False])
def test_a_commit_without_an_answer_is_what_the_server_says(postgres: PostgresServer, kept: bool) -> None:
    store = open_store(postgres.new_database())
    cut: list[int] = []

    @sa.event.listens_for(store._writing, "commit")
    def lose_the_answer(connection: sa.Connection) -> None:
        if not cut:
            cut.append(1)
            driver = connection.connection.dbapi_connection
            assert driver is not None
            if kept:
                driver.commit()
            driver.close()

    if kept:
        commit(store, SaveUser(user(1)))
    else:
        with pytest.raises(StoreUnavailable, match="before this was kept"):
            commit(store, SaveUser(user(1)))
    assert cut
    commit(store, SaveUser(user(2)))
    assert store.users.all() == ([user(1)] if kept else []) + [user(2)]
    store.close()


def test_others_are_refused_while_nobody_knows_what_became_of_a_commit(postgres: PostgresServer) -> None:
    store = open_store(postgres.new_database())
    commit(store, SaveUser(user(1)))
    stopped: list[int] = []

    @sa.event.listens_for(store._writing, "commit")
    def stop_the_server(connection: sa.Connection) -> None:
        if not stopped:
            stopped.append(1)
            postgres.stop()

    unclear = store.commit([SaveUser(user(2))])
    try:
        wait_for(lambda: stopped, "the server is stopped")
        with pytest.raises(StoreUnavailable):
            commit(store, SaveUser(user(3)))
        assert not unclear.done()
    finally:
        postgres.start()
    with pytest.raises(StoreUnavailable, match="before this was kept"):
        unclear.result(timeout=30)
    commit(store, SaveUser(user(4)))
    assert store.users.all() == [user(1), user(4)]
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
