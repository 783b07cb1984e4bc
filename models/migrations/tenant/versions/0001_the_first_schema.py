"""The first schema"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("filename", sa.String(), nullable=False),
        sa.Column("mime_type", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("object_key", sa.String(), nullable=False),
        sa.Column("upload_id", sa.String(), nullable=True),
        sa.Column("content_hash", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=True),
        sa.Column("width", sa.Integer(), nullable=True),
        sa.Column("height", sa.Integer(), nullable=True),
        sa.Column("duration_seconds", sa.Float(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint("status IN ('pending', 'stored')", name=op.f("ck_files_status_known")),
        sa.CheckConstraint("size_bytes >= 0", name=op.f("ck_files_size_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
        sa.UniqueConstraint("object_key", name=op.f("uq_files_object_key")),
    )
    op.create_index(
        "ix_files_deleted",
        "files",
        ["deleted_at"],
        unique=False,
        postgresql_where=sa.text("deleted_at IS NOT NULL AND purged_at IS NULL"),
        sqlite_where=sa.text("deleted_at IS NOT NULL AND purged_at IS NULL"),
    )
    op.create_index(
        "ix_files_pending",
        "files",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("status = 'pending'"),
        sqlite_where=sa.text("status = 'pending'"),
    )
    op.create_index("ix_files_user_id_created_at", "files", ["user_id", "created_at"], unique=False)
    op.create_table(
        "token_wallets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("balance", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint("balance >= 0", name=op.f("ck_token_wallets_balance_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token_wallets")),
        sa.UniqueConstraint(
            "tenant_id", "user_id", name=op.f("uq_token_wallets_tenant_id_user_id")
        ),
    )
    op.create_table(
        "videos",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("original_file_id", sa.Uuid(), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint(
            "status IN ('uploaded', 'processing', 'completed', 'failed', 'expired')",
            name=op.f("ck_videos_status_known"),
        ),
        sa.ForeignKeyConstraint(
            ["original_file_id"], ["files.id"], name=op.f("fk_videos_original_file_id_files")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_videos")),
        sa.UniqueConstraint("original_file_id", name=op.f("uq_videos_original_file_id")),
    )
    op.create_index(
        "ix_videos_user_id_created_at_id", "videos", ["user_id", "created_at", "id"], unique=False
    )
    op.create_table(
        "ai_jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("effect_id", sa.Uuid(), nullable=False),
        sa.Column("effect_slug", sa.String(), nullable=False),
        sa.Column("workflow_id", sa.Uuid(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("video_id", sa.Uuid(), nullable=True),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("price_tokens", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column(
            "input_payload",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("error_code", sa.String(), nullable=True),
        sa.Column("error_message", sa.String(), nullable=True),
        sa.Column("provider_job_id", sa.String(), nullable=True),
        sa.Column("refunded_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint(
            "(status IN ('completed', 'failed', 'cancelled')) = (completed_at IS NOT NULL)",
            name=op.f("ck_ai_jobs_ended_has_a_time"),
        ),
        sa.CheckConstraint(
            "provider IN ('self_hosted', 'cloud', 'runpod')", name=op.f("ck_ai_jobs_provider_known")
        ),
        sa.CheckConstraint(
            "status IN ('submitting', 'queued', 'processing', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_ai_jobs_status_known"),
        ),
        sa.CheckConstraint("price_tokens >= 0", name=op.f("ck_ai_jobs_price_not_negative")),
        sa.ForeignKeyConstraint(
            ["video_id"], ["videos.id"], name=op.f("fk_ai_jobs_video_id_videos")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ai_jobs")),
        sa.UniqueConstraint(
            "tenant_id",
            "user_id",
            "idempotency_key",
            name=op.f("uq_ai_jobs_tenant_id_user_id_idempotency_key"),
        ),
    )
    op.create_index(
        "ix_ai_jobs_active",
        "ai_jobs",
        ["user_id"],
        unique=False,
        postgresql_where=sa.text("status IN ('submitting', 'queued', 'processing')"),
        sqlite_where=sa.text("status IN ('submitting', 'queued', 'processing')"),
    )
    op.create_index(
        "ix_ai_jobs_submitting",
        "ai_jobs",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("status = 'submitting'"),
        sqlite_where=sa.text("status = 'submitting'"),
    )
    op.create_index(
        "ix_ai_jobs_user_id_created_at_id", "ai_jobs", ["user_id", "created_at", "id"], unique=False
    )
    op.create_index(
        "ix_ai_jobs_video_id",
        "ai_jobs",
        ["video_id"],
        unique=False,
        postgresql_where=sa.text("video_id IS NOT NULL"),
        sqlite_where=sa.text("video_id IS NOT NULL"),
    )
    op.create_table(
        "ai_job_outputs",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_ai_job_outputs_file_id_files")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["ai_jobs.id"], name=op.f("fk_ai_job_outputs_job_id_ai_jobs")
        ),
        sa.PrimaryKeyConstraint("job_id", "position", name=op.f("pk_ai_job_outputs")),
        sa.UniqueConstraint("file_id", name=op.f("uq_ai_job_outputs_file_id")),
    )
    op.create_table(
        "token_transactions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("wallet_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("provider_transaction_id", sa.String(), nullable=True),
        sa.Column("note", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint(
            "(type = 'PAYMENT_CREDIT' AND amount > 0) OR (type = 'JOB_RESERVE' AND amount <= 0) OR (type = 'JOB_CONSUME' AND amount = 0) OR (type = 'JOB_REFUND' AND amount >= 0)",
            name=op.f("ck_token_transactions_amount_fits_type"),
        ),
        sa.CheckConstraint(
            "(type = 'PAYMENT_CREDIT') = (provider_transaction_id IS NOT NULL) AND (type = 'PAYMENT_CREDIT') = (job_id IS NULL)",
            name=op.f("ck_token_transactions_reason_named"),
        ),
        sa.CheckConstraint(
            "type IN ('PAYMENT_CREDIT', 'JOB_RESERVE', 'JOB_CONSUME', 'JOB_REFUND')",
            name=op.f("ck_token_transactions_type_known"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["ai_jobs.id"], name=op.f("fk_token_transactions_job_id_ai_jobs")
        ),
        sa.ForeignKeyConstraint(
            ["wallet_id"],
            ["token_wallets.id"],
            name=op.f("fk_token_transactions_wallet_id_token_wallets"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token_transactions")),
        sa.UniqueConstraint("job_id", "type", name=op.f("uq_token_transactions_job_id_type")),
    )
    op.create_index(
        "ix_token_transactions_user_id_created_at_id",
        "token_transactions",
        ["user_id", "created_at", "id"],
        unique=False,
    )
    op.create_index(
        "uq_token_transactions_provider_transaction_id",
        "token_transactions",
        ["provider_transaction_id"],
        unique=True,
        postgresql_where=sa.text("provider_transaction_id IS NOT NULL"),
        sqlite_where=sa.text("provider_transaction_id IS NOT NULL"),
    )
    op.create_index(
        "uq_token_transactions_job_resolved_once",
        "token_transactions",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text("type IN ('JOB_CONSUME', 'JOB_REFUND')"),
        sqlite_where=sa.text("type IN ('JOB_CONSUME', 'JOB_REFUND')"),
    )
    if op.get_bind().dialect.name == "postgresql":
        _grant_to_the_application()
        _wall_off_tenants()
    else:
        _keep_transactions_on_sqlite()


TENANT_TABLES = (
    "files",
    "token_wallets",
    "videos",
    "ai_jobs",
    "ai_job_outputs",
    "token_transactions",
)


def _grant_to_the_application() -> None:
    op.execute("GRANT USAGE ON SCHEMA public TO comfyfleet_app")
    op.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO comfyfleet_app"
    )
    # The ledger is append-only, for the application too.
    op.execute("REVOKE UPDATE, DELETE ON token_transactions FROM comfyfleet_app")
    op.execute("REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM comfyfleet_app")


def _wall_off_tenants() -> None:
    """A transaction sees the rows of the tenant it named, or none. FORCE: the owner too."""
    tenant = "current_setting('app.tenant_id', true)"
    for table in TENANT_TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY tenant_rows ON {table}"
            f" USING (tenant_id::text = {tenant} OR {tenant} = '*')"
            f" WITH CHECK (tenant_id::text = {tenant} OR {tenant} = '*')"
        )


def _keep_transactions_on_sqlite() -> None:
    """SQLite has no roles to revoke from; triggers keep the ledger append-only."""
    for event in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER token_transactions_no_{event.lower()}"
            f" BEFORE {event} ON token_transactions"
            " BEGIN SELECT RAISE(ABORT, 'token_transactions is append-only'); END"
        )


def downgrade() -> None:
    raise RuntimeError("There is nothing before the first schema; drop the database instead.")
