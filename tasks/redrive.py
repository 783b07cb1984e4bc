"""Ordering the work of a failed job again, because a person wants it.

The old job ended for good, and what it had reserved was given back; a hold that was resolved
is never opened again. So there is a new job: the same inputs, the price of the old one.

    1. tenant pool   the new job, `submitting`, and the hold on its price
    2. central       its dispatch; in the same transaction the dead letter becomes `redriven`
    3. Redis, pool   a ticket, and the note that the job is queued, as with every order

The new job's key is made of the dispatch that failed. So however often, by whomever and in how
many places at once it is ordered again, there is one job, paid once. A crash after step 1
leaves a job in `submitting` that says where it comes from: the reconciler carries on with it,
and with the letter.
"""

from itertools import count
from uuid import UUID

from sqlalchemy.orm import Session

from models import dead_letters, fleets, jobs, ledger, orders
from models.dead_letters import DeadLetter, DeadLetterStatus
from models.dispatches import Dispatch, DispatchStatus
from models.effects import Effect
from models.errors import EffectUnavailable, NotFound, NotPossibleNow
from models.fleets import Fleet
from models.jobs import Job
from models.orders import Order
from models.workflows import Workflow
from tasks import submission
from tasks.backend import Backend

NEVER_STARTED = jobs.SUBMISSION_TIMEOUT


def redrive(backend: Backend, letter_id: UUID, *, actor: str) -> DeadLetter:
    """Order the work of a dead letter again. Asked again, it is the same new job."""
    with backend.databases.central(read_only=True) as session:
        letter = dead_letters.get(session, letter_id)
        dispatch = session.get_one(Dispatch, letter.dispatch_id)
    if letter.status == DeadLetterStatus.DISCARDED:
        raise NotPossibleNow("It was discarded: somebody decided that nothing is to be done.")
    if letter.status == DeadLetterStatus.REDRIVEN:
        return letter
    return again(backend, dispatch, actor=actor)


def again(backend: Backend, dispatch: Dispatch, *, actor: str) -> DeadLetter:
    """Order the work of any failed job again; its dead letter says as which job."""
    if dispatch.status != DispatchStatus.FAILED:
        raise NotPossibleNow(f"Only failed work is ordered again; this is {dispatch.status}.")
    job = _ordered_before(backend, dispatch) or _order(backend, dispatch, actor)
    if not submission.ensure_dispatch(backend, job):
        raise EffectUnavailable(
            "No machines serve the job any more. Its tokens will be given back."
        )
    with backend.databases.central() as session:
        letter = dead_letters.redriven(session, dispatch.id, job_id=job.id, actor=actor)
    backend.news.tell_operators()
    return letter


def discard(
    backend: Backend, letter_id: UUID, *, actor: str, note: str | None = None
) -> DeadLetter:
    """A person looked at it, and nothing is to be done."""
    with backend.databases.central() as session:
        letter = dead_letters.discard(session, letter_id, actor=actor, note=note)
    backend.news.tell_operators()
    return letter


def _ordered_before(backend: Backend, dispatch: Dispatch) -> Job | None:
    """The new job, if it is there: then nothing more is asked of its effect or its media."""
    with backend.databases.tenant(dispatch.tenant_id) as session:
        key = _next_key(session, dispatch)
        return orders.find_by_key(session, user_id=dispatch.user_id, idempotency_key=key)


def _order(backend: Backend, dispatch: Dispatch, actor: str) -> Job:
    with backend.databases.tenant(dispatch.tenant_id) as session:
        old = _job_of(session, dispatch)
    with backend.databases.central(read_only=True) as session:
        _require_on_offer(session, old, dispatch, stage=backend.settings.stage)
    with backend.databases.tenant(dispatch.tenant_id) as session:
        ledger.lock_wallet(session, user_id=old.user_id)  # so that nobody else takes this key
        order = _the_same(old, dispatch, key=_next_key(session, dispatch), actor=actor)
        try:
            return orders.submit(session, order, max_active=None).job
        except NotFound as gone:
            raise NotPossibleNow(f"What it works on was deleted. {gone.detail}") from gone


def _job_of(session: Session, dispatch: Dispatch) -> Job:
    try:
        return jobs.get(session, dispatch.tenant_job_id)
    except NotFound:
        raise NotPossibleNow("The row of its job is gone: nobody knows what it was.") from None


def _require_on_offer(session: Session, old: Job, dispatch: Dispatch, *, stage: str) -> None:
    """What was switched off stays off, for operators too: they can switch it on first."""
    where = session.get_one(Fleet, dispatch.fleet_id).stage
    if where != stage:
        raise NotPossibleNow(f"It belongs to stage {where!r}; this is {stage!r}.")
    effect = session.get(Effect, old.effect_id)
    workflow = session.get(Workflow, old.workflow_id)
    if not (effect and effect.is_active and workflow and workflow.is_active):
        raise EffectUnavailable(f"The effect {old.effect_slug!r} is switched off at the moment.")
    if fleets.serving(session, workflow_id=old.workflow_id, stage=stage) is None:
        raise EffectUnavailable(f"No machines serve the effect {old.effect_slug!r} at the moment.")


def _next_key(session: Session, dispatch: Dispatch) -> str:
    """Of the one new job. One that never came to a fleet was refunded, and does not count.

    No user can have taken it: nobody but workers and operators sees ids of dispatches.
    """
    for number in count(1):
        key = f"redrive:{dispatch.id}:{number}"
        job = orders.find_by_key(session, user_id=dispatch.user_id, idempotency_key=key)
        if job is None or job.error_code != NEVER_STARTED:
            break
    return key


def _the_same(old: Job, dispatch: Dispatch, *, key: str, actor: str) -> Order:
    origin = {"dispatch_id": str(dispatch.id), "actor": actor}
    return Order(
        user_id=old.user_id,
        effect_id=old.effect_id,
        effect_slug=old.effect_slug,
        workflow_id=old.workflow_id,
        provider=old.provider,
        price_tokens=old.price_tokens,
        idempotency_key=key,
        fingerprint=old.fingerprint,
        video_id=old.video_id,
        input_payload=old.input_payload | {"origin": origin},
    )
