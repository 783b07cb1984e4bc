"""Run by Alembic for the central history; models/migrate.py opens the connection."""

from models.migrations import run
from models.schema import METADATA

run(METADATA["central"])
