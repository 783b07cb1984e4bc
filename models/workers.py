"""GPU workers that registered themselves, and the workflows each of them may run."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.base import CentralBase, new_id, utcnow


class Worker(CentralBase):
    __tablename__ = "comfyui_workers"
    __table_args__ = (
        CheckConstraint("max_concurrency >= 1", name="max_concurrency_positive"),
        CheckConstraint("current_load >= 0", name="current_load_not_negative"),
        CheckConstraint("registration_source = 'fleet'", name="registration_source_known"),
        Index("ix_comfyui_workers_fleet_id_last_seen_at", "fleet_id", "last_seen_at"),
    )

    id: Mapped[UUID] = new_id()
    worker_id: Mapped[str] = mapped_column(unique=True)  # its own name, e.g. the instance id
    fleet_id: Mapped[UUID] = mapped_column(ForeignKey("comfyui_gpu_fleets.id"))
    token_hash: Mapped[str] = mapped_column(unique=True)
    providers: Mapped[list[Any]]
    capabilities: Mapped[dict[str, Any]]
    max_concurrency: Mapped[int] = mapped_column(default=1)
    current_load: Mapped[int] = mapped_column(default=0)
    registration_source: Mapped[str] = mapped_column(default="fleet")
    is_approved: Mapped[bool] = mapped_column(default=True)
    is_draining: Mapped[bool] = mapped_column(default=False)
    last_seen_at: Mapped[datetime] = mapped_column(default=utcnow)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class WorkerWorkflow(CentralBase):
    __tablename__ = "worker_workflows"

    worker_id: Mapped[UUID] = mapped_column(
        ForeignKey("comfyui_workers.id", ondelete="CASCADE"), primary_key=True
    )
    workflow_id: Mapped[UUID] = mapped_column(
        ForeignKey("workflows.id", ondelete="CASCADE"), primary_key=True, index=True
    )
