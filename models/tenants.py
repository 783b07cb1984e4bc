"""Tenants: who owns rows, and in which pool those rows live."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import CentralBase, new_id, utcnow


class Tenant(CentralBase):
    __tablename__ = "tenants"
    __table_args__ = (CheckConstraint("length(pool) > 0", name="pool_named"),)

    id: Mapped[UUID] = new_id()
    name: Mapped[str]
    pool: Mapped[str]  # never changes while rows of the tenant exist
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


def create(session: Session, *, name: str, pool: str) -> Tenant:
    tenant = Tenant(name=name, pool=pool)
    session.add(tenant)
    session.flush()
    return tenant
