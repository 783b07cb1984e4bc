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
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE ai_job_dispatches_seq")
    op.create_table(
        "comfyui_gpu_fleets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("slug", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("max_workers", sa.Integer(), nullable=False),
        sa.Column("bundle", sa.String(), nullable=True),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "max_workers >= 0", name=op.f("ck_comfyui_gpu_fleets_max_workers_not_negative")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comfyui_gpu_fleets")),
        sa.UniqueConstraint("stage", "slug", name=op.f("uq_comfyui_gpu_fleets_stage_slug")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("length(pool) > 0", name=op.f("ck_tenants_pool_named")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_table(
        "worker_audit_logs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=True),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("dispatch_id", sa.Uuid(), nullable=True),
        sa.Column(
            "details",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_audit_logs")),
    )
    op.create_index("ix_worker_audit_logs_at_id", "worker_audit_logs", ["at", "id"], unique=False)
    op.create_index(
        "ix_worker_audit_logs_dispatch_id", "worker_audit_logs", ["dispatch_id"], unique=False
    )
    op.create_index(
        "ix_worker_audit_logs_event_at", "worker_audit_logs", ["event", "at"], unique=False
    )
    op.create_table(
        "workflows",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("output_node_id", sa.String(), nullable=True),
        sa.Column(
            "properties",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "kind IN ('image', 'video', 'audio', 'text')", name=op.f("ck_workflows_kind_known")
        ),
        sa.CheckConstraint(
            "length(content_hash) = 64", name=op.f("ck_workflows_content_hash_sha256")
        ),
        sa.CheckConstraint("version >= 1", name=op.f("ck_workflows_version_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflows")),
        sa.UniqueConstraint("slug", name=op.f("uq_workflows_slug")),
    )
    op.create_table(
        "ai_job_dispatches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_job_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("workflow_id", sa.Uuid(), nullable=False),
        sa.Column("fleet_id", sa.Uuid(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("available_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_token", sa.Uuid(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("current_node", sa.String(), nullable=True),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.Column("duration_seconds", sa.Float(), nullable=True),
        sa.Column("leased_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(status = 'leased') = (lease_expires_at IS NOT NULL) AND (status <> 'leased' OR lease_token IS NOT NULL)",
            name=op.f("ck_ai_job_dispatches_leased_has_a_lease"),
        ),
        sa.CheckConstraint(
            "provider IN ('self_hosted', 'cloud', 'runpod')",
            name=op.f("ck_ai_job_dispatches_provider_known"),
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'leased', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_ai_job_dispatches_status_known"),
        ),
        sa.CheckConstraint(
            "attempts >= 0", name=op.f("ck_ai_job_dispatches_attempts_not_negative")
        ),
        sa.CheckConstraint(
            "max_attempts >= 1", name=op.f("ck_ai_job_dispatches_max_attempts_positive")
        ),
        sa.CheckConstraint(
            "progress >= 0 AND progress <= 1", name=op.f("ck_ai_job_dispatches_progress_is_a_share")
        ),
        sa.ForeignKeyConstraint(
            ["fleet_id"],
            ["comfyui_gpu_fleets.id"],
            name=op.f("fk_ai_job_dispatches_fleet_id_comfyui_gpu_fleets"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_ai_job_dispatches_tenant_id_tenants")
        ),
        sa.ForeignKeyConstraint(
            ["workflow_id"],
            ["workflows.id"],
            name=op.f("fk_ai_job_dispatches_workflow_id_workflows"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ai_job_dispatches")),
        sa.UniqueConstraint("seq", name=op.f("uq_ai_job_dispatches_seq")),
        sa.UniqueConstraint(
            "tenant_id", "tenant_job_id", name=op.f("uq_ai_job_dispatches_tenant_id_tenant_job_id")
        ),
    )
    op.create_index(
        "ix_ai_job_dispatches_backing_off",
        "ai_job_dispatches",
        ["fleet_id", "available_at"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND available_at IS NOT NULL"),
        sqlite_where=sa.text("status = 'queued' AND available_at IS NOT NULL"),
    )
    op.create_index(
        "ix_ai_job_dispatches_leased",
        "ai_job_dispatches",
        ["fleet_id", "lease_expires_at"],
        unique=False,
        postgresql_where=sa.text("status = 'leased'"),
        sqlite_where=sa.text("status = 'leased'"),
    )
    op.create_index(
        "ix_ai_job_dispatches_ready",
        "ai_job_dispatches",
        ["fleet_id", "provider", sa.literal_column("priority DESC"), "turn", "seq"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND available_at IS NULL"),
        sqlite_where=sa.text("status = 'queued' AND available_at IS NULL"),
    )
    op.create_index(
        "ix_ai_job_dispatches_users_turns",
        "ai_job_dispatches",
        ["fleet_id", "provider", "user_id", "priority", "turn"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
        sqlite_where=sa.text("status = 'queued'"),
    )
    op.create_table(
        "comfyui_workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("fleet_id", sa.Uuid(), nullable=False),
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column(
            "providers",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column(
            "capabilities",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("max_concurrency", sa.Integer(), nullable=False),
        sa.Column("current_load", sa.Integer(), nullable=False),
        sa.Column("registration_source", sa.String(), nullable=False),
        sa.Column("is_approved", sa.Boolean(), nullable=False),
        sa.Column("is_draining", sa.Boolean(), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "registration_source = 'fleet'",
            name=op.f("ck_comfyui_workers_registration_source_known"),
        ),
        sa.CheckConstraint(
            "current_load >= 0", name=op.f("ck_comfyui_workers_current_load_not_negative")
        ),
        sa.CheckConstraint(
            "max_concurrency >= 1", name=op.f("ck_comfyui_workers_max_concurrency_positive")
        ),
        sa.ForeignKeyConstraint(
            ["fleet_id"],
            ["comfyui_gpu_fleets.id"],
            name=op.f("fk_comfyui_workers_fleet_id_comfyui_gpu_fleets"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comfyui_workers")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_comfyui_workers_token_hash")),
        sa.UniqueConstraint("worker_id", name=op.f("uq_comfyui_workers_worker_id")),
    )
    op.create_index(
        "ix_comfyui_workers_fleet_id_last_seen_at",
        "comfyui_workers",
        ["fleet_id", "last_seen_at"],
        unique=False,
    )
    op.create_table(
        "comfyui_workflow_fleets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("workflow_id", sa.Uuid(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("fleet_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet_id"],
            ["comfyui_gpu_fleets.id"],
            name=op.f("fk_comfyui_workflow_fleets_fleet_id_comfyui_gpu_fleets"),
        ),
        sa.ForeignKeyConstraint(
            ["workflow_id"],
            ["workflows.id"],
            name=op.f("fk_comfyui_workflow_fleets_workflow_id_workflows"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comfyui_workflow_fleets")),
        sa.UniqueConstraint(
            "workflow_id", "stage", name=op.f("uq_comfyui_workflow_fleets_workflow_id_stage")
        ),
    )
    op.create_index(
        op.f("ix_comfyui_workflow_fleets_fleet_id"),
        "comfyui_workflow_fleets",
        ["fleet_id"],
        unique=False,
    )
    op.create_table(
        "effects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("workflow_id", sa.Uuid(), nullable=False),
        sa.Column("credits_cost", sa.Integer(), nullable=False),
        sa.Column(
            "overrides",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("last_processing_time_seconds", sa.Float(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "provider IN ('self_hosted', 'cloud', 'runpod')", name=op.f("ck_effects_provider_known")
        ),
        sa.CheckConstraint("credits_cost >= 0", name=op.f("ck_effects_credits_cost_not_negative")),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflows.id"], name=op.f("fk_effects_workflow_id_workflows")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_effects")),
        sa.UniqueConstraint("slug", name=op.f("uq_effects_slug")),
    )
    op.create_index(op.f("ix_effects_workflow_id"), "effects", ["workflow_id"], unique=False)
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("email", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("password_hash", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('user', 'admin')", name=op.f("ck_users_role_known")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_users_tenant_id_tenants")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("email", name=op.f("uq_users_email")),
    )
    op.create_index(op.f("ix_users_tenant_id"), "users", ["tenant_id"], unique=False)
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("previous_secret", sa.String(), nullable=True),
        sa.Column(
            "events",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_endpoints_tenant_id_tenants")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index(
        "ix_webhook_endpoints_tenant_id", "webhook_endpoints", ["tenant_id"], unique=False
    )
    op.create_table(
        "access_tokens",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["users.id"],
            name=op.f("fk_access_tokens_user_id_users"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_access_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_access_tokens_token_hash")),
    )
    op.create_index("ix_access_tokens_user_id", "access_tokens", ["user_id"], unique=False)
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("dispatch_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("trace", sa.String(), nullable=True),
        sa.Column(
            "history",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("resolved_by", sa.String(), nullable=True),
        sa.CheckConstraint(
            "status IN ('open', 'redriven', 'discarded')", name=op.f("ck_dead_letters_status_known")
        ),
        sa.ForeignKeyConstraint(
            ["dispatch_id"],
            ["ai_job_dispatches.id"],
            name=op.f("fk_dead_letters_dispatch_id_ai_job_dispatches"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letters")),
        sa.UniqueConstraint("dispatch_id", name=op.f("uq_dead_letters_dispatch_id")),
    )
    op.create_index(
        "ix_dead_letters_status_created_at", "dead_letters", ["status", "created_at"], unique=False
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column(
            "payload",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("response_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'delivered', 'failed')",
            name=op.f("ck_webhook_deliveries_status_known"),
        ),
        sa.CheckConstraint(
            "attempts >= 0", name=op.f("ck_webhook_deliveries_attempts_not_negative")
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name=op.f("fk_webhook_deliveries_endpoint_id_webhook_endpoints"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint(
            "endpoint_id", "event_key", name=op.f("uq_webhook_deliveries_endpoint_id_event_key")
        ),
    )
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["next_attempt_at"],
        unique=False,
        postgresql_where=sa.text("status = 'pending'"),
        sqlite_where=sa.text("status = 'pending'"),
    )
    op.create_table(
        "worker_workflows",
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("workflow_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"],
            ["comfyui_workers.id"],
            name=op.f("fk_worker_workflows_worker_id_comfyui_workers"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["workflow_id"],
            ["workflows.id"],
            name=op.f("fk_worker_workflows_workflow_id_workflows"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("worker_id", "workflow_id", name=op.f("pk_worker_workflows")),
    )
    op.create_index(
        op.f("ix_worker_workflows_workflow_id"), "worker_workflows", ["workflow_id"], unique=False
    )
    if op.get_bind().dialect.name == "postgresql":
        _tune_the_queue_table()
        _grant_to_the_application()


def _tune_the_queue_table() -> None:
    """Its rows change state many times and the live part is small: vacuum early."""
    op.execute(
        "ALTER TABLE ai_job_dispatches SET (fillfactor = 85,"
        " autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.02)"
    )


def _grant_to_the_application() -> None:
    op.execute("GRANT USAGE ON SCHEMA public TO comfyfleet_app")
    op.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO comfyfleet_app"
    )
    op.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO comfyfleet_app")
    # The audit log and the schema's version are not for the application to rewrite.
    op.execute("REVOKE UPDATE, DELETE ON worker_audit_logs FROM comfyfleet_app")
    op.execute("REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM comfyfleet_app")


def downgrade() -> None:
    raise RuntimeError("There is nothing before the first schema; drop the database instead.")
