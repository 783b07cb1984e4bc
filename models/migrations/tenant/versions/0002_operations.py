"""Wallets that ran low, media that runs out, ends that were not told"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

RUNS_OUT = sa.text("expires_at IS NOT NULL AND deleted_at IS NULL AND status <> 'expired'")
UNDATED = sa.text(
    "status IN ('uploaded', 'completed', 'failed') AND expires_at IS NULL AND deleted_at IS NULL"
)
HAS_OWN_RESULTS = sa.text(
    "status = 'completed' AND video_id IS NULL AND results_expired_at IS NULL"
)
IS_UNTOLD = sa.text("untold_since IS NOT NULL")


def upgrade() -> None:
    op.add_column(
        "token_wallets", sa.Column("low_told_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.add_column("token_wallets", sa.Column("low_below", sa.BigInteger(), nullable=True))
    op.add_column(
        "token_wallets", sa.Column("low_since", sa.DateTime(timezone=True), nullable=True)
    )
    op.add_column("ai_jobs", sa.Column("untold_since", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_ai_jobs_untold",
        "ai_jobs",
        ["untold_since"],
        postgresql_where=IS_UNTOLD,
        sqlite_where=IS_UNTOLD,
    )
    op.add_column("ai_jobs", sa.Column("results_expired_at", sa.DateTime(timezone=True)))
    op.create_index(
        "ix_ai_jobs_own_results",
        "ai_jobs",
        ["completed_at"],
        postgresql_where=HAS_OWN_RESULTS,
        sqlite_where=HAS_OWN_RESULTS,
    )
    op.create_index(
        "ix_videos_undated",
        "videos",
        ["created_at"],
        postgresql_where=UNDATED,
        sqlite_where=UNDATED,
    )
    op.create_index(
        "ix_videos_runs_out",
        "videos",
        ["expires_at"],
        postgresql_where=RUNS_OUT,
        sqlite_where=RUNS_OUT,
    )
    op.create_index("ix_ai_jobs_completed_at", "ai_jobs", ["completed_at"])


def downgrade() -> None:
    op.drop_index("ix_ai_jobs_completed_at", "ai_jobs")
    op.drop_index("ix_videos_runs_out", "videos")
    op.drop_index("ix_videos_undated", "videos")
    op.drop_index("ix_ai_jobs_own_results", "ai_jobs")
    op.drop_column("ai_jobs", "results_expired_at")
    op.drop_index("ix_ai_jobs_untold", "ai_jobs")
    op.drop_column("ai_jobs", "untold_since")
    op.drop_column("token_wallets", "low_since")
    op.drop_column("token_wallets", "low_below")
    op.drop_column("token_wallets", "low_told_at")
