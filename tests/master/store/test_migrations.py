"""The migrations lead to the tables that the code knows, all at once or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from detlab_master.store import migrations, tables
from detlab_master.store.base import StoreUnavailable
from detlab_master.store.sql import open_store


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/100% detlab.db"
    created: str = request.getfixturevalue("postgres").new_database()
    return created


@pytest.fixture
def upgraded(url: str) -> Iterator[sa.Engine]:
    open_store(url).close()
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def test_an_upgraded_database_has_the_tables_of_the_code(upgraded: sa.Engine) -> None:
    with upgraded.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, tables.metadata) == []


def test_every_constraint_and_index_has_the_name_of_the_convention(upgraded: sa.Engine) -> None:
    """A constraint without a name can never be dropped by a later migration on both databases."""
    inspector = sa.inspect(upgraded)
    for table in tables.metadata.tables.values():
        if not table.dialect_options["sqlite"]["autoincrement"]:  # SQLite wants that without a name
            assert inspector.get_pk_constraint(table.name)["name"] == table.primary_key.name
        foreign = {found["name"] for found in inspector.get_foreign_keys(table.name)}
        assert foreign == {constraint.name for constraint in table.foreign_key_constraints}
        unique = {
            constraint.name for constraint in table.constraints if isinstance(constraint, sa.UniqueConstraint)
        }
        assert {found["name"] for found in inspector.get_unique_constraints(table.name)} == unique
        indexes = {found["name"] for found in inspector.get_indexes(table.name)} - unique
        assert indexes == {index.name for index in table.indexes}


def test_only_reports_that_count_are_unique(upgraded: sa.Engine) -> None:
    (live,) = (
        index
        for index in sa.inspect(upgraded).get_indexes("metric_reports")
        if index["name"] == "uq_metric_reports_live"
    )
    where = str(live["dialect_options"][f"{upgraded.dialect.name}_where"]).strip("()")
    assert where.startswith(("archived = 0 AND", "archived = false) AND", "archived = false AND"))
    assert "gpu" in where


def test_an_index_serves_the_look_for_a_live_report(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/detlab.db"
    open_store(url).close()
    m = tables.metric_reports.c
    look = sa.select(m.id).where(
        m.trial_id == 1, m.group == "training", m.steps_completed == 5, m.archived == sa.false()
    )
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        sql = str(look.compile(engine, compile_kwargs={"literal_binds": True}))
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}").all()
    engine.dispose()
    assert "USING INDEX" in str(plan)
    assert "trial_id=? AND steps_completed=?" in str(plan)


def test_opening_again_changes_nothing(url: str) -> None:
    first = open_store(url)
    cluster_id = first.cluster_id()
    first.close()
    again = open_store(url)
    assert again.cluster_id() == cluster_id
    assert again.projects.project(1) is not None
    again.close()


def test_an_upgrade_that_is_broken_off_leaves_nothing(url: str) -> None:
    engine = sa.create_engine(
        url, **({"connect_args": {"isolation_level": None}} if url.startswith("sqlite") else {})
    )

    class BrokenOff(Exception):
        pass

    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with pytest.raises(BrokenOff), engine.begin() as connection:
        migrations.upgrade(connection)
        assert sa.inspect(connection).has_table("experiments")
        raise BrokenOff
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


def test_a_database_of_a_newer_version_is_left_alone(upgraded: sa.Engine, url: str) -> None:
    with upgraded.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreUnavailable, match=r"another version of Detlab.*9999.*start that version"):
        open_store(url)
    with upgraded.begin() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "9999"
