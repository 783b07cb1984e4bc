"""What the two Alembic histories have in common."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import MetaData

from models.base import UtcDateTime


def run(metadata: MetaData) -> None:
    """Run the migrations on the connection that models/migrate.py opened and locked."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        transactional_ddl=True,  # on SQLite too: we begin its transactions ourselves
        render_item=_spell_our_types,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def _spell_our_types(kind: str, value: Any, _: Any) -> str | Literal[False]:
    """A migration must not depend on classes that may change later."""
    if kind == "type" and isinstance(value, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False
