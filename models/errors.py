"""Everything the backend refuses, and why. Each refusal is a fact with a stable code.

    Refusal                          status  code
    ├── InvalidInput                  422    invalid_input
    ├── IdempotencyKeyReused          422    idempotency_key_reused
    ├── TransactionIdReused           422    transaction_id_reused
    ├── EffectUnavailable             422    effect_unavailable
    ├── InsufficientTokens            422    insufficient_tokens   (required_tokens, balance)
    ├── UploadMissing                 422    upload_missing
    ├── UploadSizeMismatch            422    upload_size_mismatch
    ├── MediaUnreadable               422    media_unreadable
    ├── MediaNotAllowed               422    media_not_allowed
    ├── InvalidCursor                 422    invalid_cursor
    ├── Unauthorized                  401    unauthorized
    ├── Forbidden                     403    forbidden
    ├── NotFound                      404    not_found
    ├── LeaseLost                     409    lease_lost
    ├── EmailTaken                    409    email_taken
    ├── AlreadyRefunded               409    already_refunded
    ├── VideoInUse                    409    video_in_use
    ├── NotPossibleNow                409    not_possible_now
    ├── SlugTaken                     409    slug_taken
    ├── WorkerIdTaken                 409    worker_id_taken
    ├── FleetFull                     409    fleet_full
    ├── TooManyActiveJobs             429    too_many_active_jobs  (retry_after_seconds)
    ├── TooManyStreams                429    too_many_streams      (retry_after_seconds)
    ├── RateLimited                   429    rate_limited          (retry_after_seconds)
    └── DependencyUnavailable         503    dependency_unavailable (retry_after_seconds)

A refusal leaves nothing behind: it is raised before anything is written, or the
transaction it was raised in is rolled back. docs/errors.md lists every code.
"""

from typing import Any, ClassVar

import psycopg2
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

#: SQLAlchemy's, and the driver's own, which the hot path talks to directly.
DATABASE_AWAY = (
    OperationalError,
    InterfaceError,
    PoolExhausted,
    psycopg2.OperationalError,
    psycopg2.InterfaceError,
)


class Refusal(Exception):
    """The request can't be granted. `detail` is a sentence a person can act on."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "refused"
    title: ClassVar[str] = "The request was refused."

    def __init__(
        self, detail: str, *, errors: dict[str, list[str]] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors
        self.extra = extra


class InvalidInput(Refusal):
    status, code = 422, "invalid_input"
    title = "Some of the input is not valid."

    @classmethod
    def field(cls, name: str, sentence: str) -> "InvalidInput":
        return cls(f"{name}: {sentence}", errors={name: [sentence]})


class IdempotencyKeyReused(Refusal):
    status, code = 422, "idempotency_key_reused"
    title = "This idempotency key belongs to another request."


class TransactionIdReused(Refusal):
    status, code = 422, "transaction_id_reused"
    title = "This payment was already booked differently."


class EffectUnavailable(Refusal):
    status, code = 422, "effect_unavailable"
    title = "The effect can't be used right now."


class InsufficientTokens(Refusal):
    status, code = 422, "insufficient_tokens"
    title = "The wallet does not cover the price."

    def __init__(self, *, required_tokens: int, balance: int) -> None:
        super().__init__(
            f"This costs {required_tokens} tokens; the wallet holds {balance}.",
            required_tokens=required_tokens,
            balance=balance,
        )


class UploadMissing(Refusal):
    status, code = 422, "upload_missing"
    title = "The file has not been uploaded."


class UploadSizeMismatch(Refusal):
    status, code = 422, "upload_size_mismatch"
    title = "The uploaded file has another size than was announced."


class MediaUnreadable(Refusal):
    status, code = 422, "media_unreadable"
    title = "The file can't be read as what it claims to be."


class MediaNotAllowed(Refusal):
    status, code = 422, "media_not_allowed"
    title = "This kind of file is not accepted."


class InvalidCursor(Refusal):
    status, code = 422, "invalid_cursor"
    title = "The cursor does not belong to this list."


class Unauthorized(Refusal):
    status, code = 401, "unauthorized"
    title = "Please sign in."


class Forbidden(Refusal):
    status, code = 403, "forbidden"
    title = "Not allowed."


class NotFound(Refusal):
    status, code = 404, "not_found"
    title = "There is no such thing here."


class LeaseLost(Refusal):
    status, code = 409, "lease_lost"
    title = "This lease belongs to somebody else by now, or to nobody."


class EmailTaken(Refusal):
    status, code = 409, "email_taken"
    title = "This e-mail address is already registered."


class AlreadyRefunded(Refusal):
    status, code = 409, "already_refunded"
    title = "The tokens of this job were already given back."


class VideoInUse(Refusal):
    status, code = 409, "video_in_use"
    title = "A job is still working on this video."


class NotPossibleNow(Refusal):
    status, code = 409, "not_possible_now"
    title = "The thing is not in a state that allows this."


class SlugTaken(Refusal):
    status, code = 409, "slug_taken"
    title = "There is one of this name already."


class WorkerIdTaken(Refusal):
    status, code = 409, "worker_id_taken"
    title = "Another worker has this id."


class FleetFull(Refusal):
    status, code = 409, "fleet_full"
    title = "The fleet has all the workers it may have."


class TooManyActiveJobs(Refusal):
    status, code = 429, "too_many_active_jobs"
    title = "Too many jobs are running already."


class TooManyStreams(Refusal):
    status, code = 429, "too_many_streams"
    title = "Too many event streams are open already."


class RateLimited(Refusal):
    status, code = 429, "rate_limited"
    title = "Too many requests."


class DependencyUnavailable(Refusal):
    status, code = 503, "dependency_unavailable"
    title = "A part of the system does not answer."


def every_refusal() -> list[type[Refusal]]:
    """All refusals, for the documentation and the tests that keep it complete."""
    return sorted(Refusal.__subclasses__(), key=lambda refusal: (refusal.status, refusal.code))
