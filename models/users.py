"""People, their passwords and their sign-ins.

A sign-in is an opaque random token. Only its SHA-256 is stored: the token has 256 bits,
so nothing slower is needed, and a leaked table signs nobody in. Passwords are argon2id.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from uuid import UUID

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError
from sqlalchemy import ForeignKey, Index, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import tenants
from models.base import CentralBase, new_id, one_of, utcnow
from models.errors import EmailTaken, NotFound, Unauthorized


class Role(StrEnum):
    USER = "user"
    ADMIN = "admin"


class User(CentralBase):
    __tablename__ = "users"
    __table_args__ = (one_of("role", Role),)

    id: Mapped[UUID] = new_id()
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    email: Mapped[str] = mapped_column(unique=True)  # lower case
    name: Mapped[str]
    password_hash: Mapped[str]
    role: Mapped[str] = mapped_column(default=Role.USER)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)


class AccessToken(CentralBase):
    __tablename__ = "access_tokens"
    __table_args__ = (Index("ix_access_tokens_user_id", "user_id"),)

    id: Mapped[UUID] = new_id()
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    token_hash: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(default=utcnow)
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. Everything a request may touch follows from this."""

    user_id: UUID
    tenant_id: UUID
    role: str
    token_id: UUID

    @property
    def is_admin(self) -> bool:
        return self.role == Role.ADMIN


_hasher = PasswordHasher()


def hash_password(password: str) -> str:
    """Slow and memory-hungry on purpose: call it with no transaction open."""
    return _hasher.hash(password)


def password_matches(user: User | None, password: str) -> bool:
    """Takes as long for an unknown user as for a known one, so it tells nobody who is here."""
    try:
        _hasher.verify(user.password_hash if user else _nobodys_hash(), password)
    except VerificationError:
        return False
    return user is not None


@cache
def _nobodys_hash() -> str:
    return _hasher.hash(secrets.token_hex())


def register(
    session: Session,
    *,
    email: str,
    password_hash: str,
    name: str,
    pool: str,
    role: Role = Role.USER,
) -> User:
    """A new person gets a tenant of their own. The wallet appears with the first token."""
    email = normal_email(email)
    if find_by_email(session, email):
        raise EmailTaken("Sign in instead, or use another address.")
    tenant = tenants.create(session, name=name or email, pool=pool)
    user = User(tenant_id=tenant.id, email=email, name=name, password_hash=password_hash, role=role)
    session.add(user)
    try:
        session.flush()
    except IntegrityError:  # somebody registered the same address a moment ago
        raise EmailTaken("Sign in instead, or use another address.") from None
    return user


def normal_email(email: str) -> str:
    return email.strip().lower()


def find_by_email(session: Session, email: str) -> User | None:
    return session.scalar(select(User).where(User.email == normal_email(email)))


def get(session: Session, user_id: UUID) -> User:
    user = session.get(User, user_id)
    if user is None:
        raise NotFound("There is no such user.")
    return user


def issue_token(session: Session, user: User, *, days: int) -> str:
    """A new sign-in. The token itself is returned once and never stored."""
    token = secrets.token_urlsafe(32)
    now = utcnow()
    session.add(
        AccessToken(
            user_id=user.id,
            token_hash=token_hash(token),
            created_at=now,
            expires_at=now + timedelta(days=days),
        )
    )
    session.flush()
    return token


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


# Built once: this runs on every request.
_principal = (
    select(User.id, User.tenant_id, User.role, AccessToken.id, AccessToken.expires_at)
    .join(AccessToken, AccessToken.user_id == User.id)
    .where(AccessToken.revoked_at.is_(None))
)


def identify(session: Session, token: str) -> Principal:
    row = session.execute(
        _principal.where(AccessToken.token_hash == token_hash(token))
    ).one_or_none()
    if row is None:
        raise Unauthorized("The token is unknown or was revoked. Sign in again.")
    user_id, tenant_id, role, token_id, expires_at = row
    if expires_at <= utcnow():
        raise Unauthorized("The sign-in has expired. Sign in again.")
    return Principal(user_id, tenant_id, role, token_id)


def revoke_token(session: Session, token_id: UUID) -> None:
    session.execute(
        update(AccessToken).where(AccessToken.id == token_id).values(revoked_at=utcnow())
    )
