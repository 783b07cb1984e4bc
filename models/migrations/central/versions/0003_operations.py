"""What operators need: traces, turns of control tasks, webhooks that are retried, leftovers"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

HAS_ENDED = sa.text("status IN ('completed', 'failed', 'cancelled')")
LITTERED = sa.text(
    "status IN ('completed', 'failed', 'cancelled') AND swept_at IS NULL"
    " AND (last_error IS NOT NULL OR status = 'cancelled')"
)
IS_PENDING = sa.text("status = 'pending'")
IS_FAILED = sa.text("status = 'failed'")
WAS_DELIVERED = sa.text("delivered_at IS NOT NULL")

WENT_WRONG = sa.text("status IN ('failed', 'cancelled')")
BY_PEOPLE = sa.text("actor <> 'system' AND actor NOT LIKE 'worker:%'")


def upgrade() -> None:
    op.add_column("ai_job_dispatches", sa.Column("traceparent", sa.String(), nullable=True))
    op.add_column("ai_job_dispatches", sa.Column("swept_at", sa.DateTime(timezone=True)))
    op.add_column("ai_job_dispatches", sa.Column("lease_lost_at", sa.DateTime(timezone=True)))
    op.create_index(
        "ix_ai_job_dispatches_littered",
        "ai_job_dispatches",
        ["updated_at"],
        postgresql_where=LITTERED,
        sqlite_where=LITTERED,
    )
    op.create_index(
        "ix_ai_job_dispatches_ended",
        "ai_job_dispatches",
        ["fleet_id", "updated_at"],
        postgresql_where=HAS_ENDED,
        sqlite_where=HAS_ENDED,
    )
    op.create_index("ix_ai_job_dispatches_created_at_id", "ai_job_dispatches", ["created_at", "id"])
    op.create_index(
        "ix_ai_job_dispatches_went_wrong",
        "ai_job_dispatches",
        ["created_at", "id"],
        postgresql_where=WENT_WRONG,
        sqlite_where=WENT_WRONG,
    )
    op.create_index(
        "ix_worker_audit_logs_by_people",
        "worker_audit_logs",
        ["actor", "at", "id"],
        postgresql_where=BY_PEOPLE,
        sqlite_where=BY_PEOPLE,
    )
    op.create_table(
        "control_turns",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "done",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_control_turns")),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON control_turns TO comfyfleet_app")
    _keep_versions()
    op.add_column("dead_letters", sa.Column("redriven_job_id", sa.Uuid(), nullable=True))
    op.create_index("ix_dead_letters_created_at_id", "dead_letters", ["created_at", "id"])
    op.add_column(
        "webhook_endpoints",
        sa.Column("previous_secret_until", sa.DateTime(timezone=True), nullable=True),
    )
    op.add_column("webhook_endpoints", sa.Column("failing_since", sa.DateTime(timezone=True)))
    op.add_column(
        "webhook_deliveries",
        sa.Column("message_id", sa.String(), nullable=False, server_default=""),
    )
    op.add_column(
        "webhook_deliveries",
        sa.Column(
            "log",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
            server_default="[]",
        ),
    )
    op.create_index(
        "ix_webhook_deliveries_endpoint_id_created_at_id",
        "webhook_deliveries",
        ["endpoint_id", "created_at", "id"],
    )
    op.create_index("ix_webhook_deliveries_created_at", "webhook_deliveries", ["created_at"])
    op.create_index(
        "ix_webhook_deliveries_failed",
        "webhook_deliveries",
        ["created_at"],
        postgresql_where=IS_FAILED,
        sqlite_where=IS_FAILED,
    )
    op.create_index(
        "ix_webhook_deliveries_delivered_at",
        "webhook_deliveries",
        ["delivered_at"],
        postgresql_where=WAS_DELIVERED,
        sqlite_where=WAS_DELIVERED,
    )
    op.drop_index("ix_webhook_deliveries_due", "webhook_deliveries")
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["endpoint_id", "next_attempt_at"],
        postgresql_where=IS_PENDING,
        sqlite_where=IS_PENDING,
    )


def _keep_versions() -> None:
    op.create_table(
        "workflow_versions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("workflow_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("output_node_id", sa.String(), nullable=True),
        sa.Column(
            "properties",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("created_by", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("version >= 1", name=op.f("ck_workflow_versions_version_positive")),
        sa.CheckConstraint(
            "length(content_hash) = 64", name=op.f("ck_workflow_versions_content_hash_sha256")
        ),
        sa.ForeignKeyConstraint(
            ["workflow_id"],
            ["workflows.id"],
            name=op.f("fk_workflow_versions_workflow_id_workflows"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflow_versions")),
        sa.UniqueConstraint(
            "workflow_id",
            "content_hash",
            name=op.f("uq_workflow_versions_workflow_id_content_hash"),
        ),
        sa.UniqueConstraint(
            "workflow_id", "version", name=op.f("uq_workflow_versions_workflow_id_version")
        ),
    )
    # Of earlier versions nothing is known but their number.
    op.execute(
        """
        INSERT INTO workflow_versions (id, workflow_id, version, content_hash, output_node_id,
            properties, created_at)
        SELECT id, id, version, content_hash, output_node_id, properties, updated_at
        FROM workflows
        """
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("GRANT SELECT, INSERT ON workflow_versions TO comfyfleet_app")


def downgrade() -> None:
    op.drop_index("ix_webhook_deliveries_pending", "webhook_deliveries")
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["next_attempt_at"],
        postgresql_where=IS_PENDING,
        sqlite_where=IS_PENDING,
    )
    op.drop_index("ix_webhook_deliveries_delivered_at", "webhook_deliveries")
    op.drop_index("ix_webhook_deliveries_failed", "webhook_deliveries")
    op.drop_index("ix_webhook_deliveries_created_at", "webhook_deliveries")
    op.drop_index("ix_webhook_deliveries_endpoint_id_created_at_id", "webhook_deliveries")
    op.drop_column("webhook_deliveries", "log")
    op.drop_column("webhook_deliveries", "message_id")
    op.drop_column("webhook_endpoints", "failing_since")
    op.drop_column("webhook_endpoints", "previous_secret_until")
    op.drop_index("ix_dead_letters_created_at_id", "dead_letters")
    op.drop_column("dead_letters", "redriven_job_id")
    op.drop_table("workflow_versions")
    op.drop_table("control_turns")
    op.drop_index("ix_worker_audit_logs_by_people", "worker_audit_logs")
    op.drop_index("ix_ai_job_dispatches_went_wrong", "ai_job_dispatches")
    op.drop_index("ix_ai_job_dispatches_created_at_id", "ai_job_dispatches")
    op.drop_index("ix_ai_job_dispatches_ended", "ai_job_dispatches")
    op.drop_index("ix_ai_job_dispatches_littered", "ai_job_dispatches")
    op.drop_column("ai_job_dispatches", "lease_lost_at")
    op.drop_column("ai_job_dispatches", "swept_at")
    op.drop_column("ai_job_dispatches", "traceparent")
