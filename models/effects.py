"""Effects: what users choose and pay for. Each is a workflow with some properties set."""

from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict, Unpack
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Select, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from models import slugs
from models.base import CentralBase, change_row, new_id, one_of, utcnow
from models.errors import InvalidInput, NotFound, SlugTaken
from models.workflows import Workflow

PRICE_MAX_TOKENS = 1_000_000


class Provider(StrEnum):
    """Where a job runs."""

    SELF_HOSTED = "self_hosted"
    CLOUD = "cloud"
    RUNPOD = "runpod"


class Effect(CentralBase):
    __tablename__ = "effects"
    __table_args__ = (
        one_of("provider", Provider),
        CheckConstraint("credits_cost >= 0", name="credits_cost_not_negative"),
    )

    id: Mapped[UUID] = new_id()
    slug: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    description: Mapped[str] = mapped_column(default="")
    workflow_id: Mapped[UUID] = mapped_column(ForeignKey("workflows.id"), index=True)
    credits_cost: Mapped[int]
    overrides: Mapped[dict[str, Any]] = mapped_column(default=dict)
    provider: Mapped[str] = mapped_column(default=Provider.SELF_HOSTED)
    is_active: Mapped[bool] = mapped_column(default=True)
    last_processing_time_seconds: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(default=utcnow)

    workflow: Mapped[Workflow] = relationship(lazy="joined", innerjoin=True)


def put(
    session: Session,
    *,
    slug: str,
    name: str,
    description: str,
    workflow: Workflow,
    credits_cost: int,
    overrides: dict[str, Any],
    provider: str = Provider.SELF_HOSTED,
) -> Effect:
    effect = session.scalar(select(Effect).where(Effect.slug == slug)) or Effect(slug=slug)
    effect.name, effect.description = name, description
    effect.workflow = workflow
    effect.credits_cost, effect.overrides, effect.provider = credits_cost, overrides, provider
    session.add(effect)
    session.flush()
    return effect


class EffectChange(TypedDict, total=False):
    """What may be different from now on. Jobs keep the price and values of their order."""

    name: str
    description: str
    workflow_id: UUID
    credits_cost: int
    overrides: dict[str, Any]
    provider: str
    is_active: bool


def check_change(values: EffectChange) -> None:
    if "name" in values:
        slugs.check_name(values["name"])
    slugs.check_text(values.get("description", ""), field="description")
    if not 0 <= values.get("credits_cost", 0) <= PRICE_MAX_TOKENS:
        raise InvalidInput.field("credits_cost", f"Must be from 0 to {PRICE_MAX_TOKENS}.")


def create(session: Session, *, slug: str, **values: Unpack[EffectChange]) -> Effect:
    check_change(values)
    effect = Effect(slug=slugs.check(slug), **values)
    try:
        with session.begin_nested():
            session.add(effect)
    except IntegrityError:
        raise SlugTaken(f"There is an effect {slug!r} already.") from None
    session.refresh(effect)  # for its workflow
    return effect


def change(
    session: Session, effect: Effect, **values: Unpack[EffectChange]
) -> dict[str, list[Any]]:
    """Returns what was different, before and after."""
    check_change(values)
    changes = change_row(effect, values)
    session.flush()
    session.refresh(effect)  # it may have another workflow
    return changes


def everything() -> Select[tuple[Effect]]:
    return select(Effect)


def offered() -> Select[tuple[Effect]]:
    """Every effect a user may choose."""
    return select(Effect).join(Effect.workflow).where(Effect.is_active, Workflow.is_active)


def find(session: Session, id_or_slug: str) -> Effect | None:
    return session.scalar(select(Effect).where(named(id_or_slug)))


def get(session: Session, id_or_slug: str, *, offered_only: bool = True) -> Effect:
    effect = find(session, id_or_slug)
    is_offered = effect is not None and effect.is_active and effect.workflow.is_active
    if effect is None or (offered_only and not is_offered):
        raise NotFound(f"There is no effect {id_or_slug!r}.")
    return effect


def locked(session: Session, id_or_slug: str) -> Effect:
    """Whether it is on offer or not."""
    row = select(Effect).where(named(id_or_slug)).with_for_update(key_share=True, of=Effect)
    effect = session.scalar(row.execution_options(populate_existing=True))
    if effect is None:
        raise NotFound(f"There is no effect {id_or_slug!r}.")
    return effect


def named(id_or_slug: str) -> Any:
    try:
        return Effect.id == UUID(id_or_slug)
    except ValueError:
        return Effect.slug == id_or_slug


def record_duration(session: Session, effect_id: UUID, *, seconds: float) -> None:
    session.execute(
        update(Effect).where(Effect.id == effect_id).values(last_processing_time_seconds=seconds)
    )
