"""Run by Alembic around each command: on the connection that `detlab_master.store.migrations` hands over."""

from __future__ import annotations

from alembic import context

from detlab_master.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter a column: Alembic copies the table
)
with context.begin_transaction():
    context.run_migrations()
