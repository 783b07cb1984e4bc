"""Being told by a stack as `comfyfleet up` starts it: a receiver on loopback hears of every end,
while Redis and the control worker are hurt."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from standardwebhooks.webhooks import WebhookVerificationError

from tests.end_to_end import jobs
from tests.end_to_end.house import House
from tests.end_to_end.running_part import until
from tests.tasks.receivers import Receiver, receiver

ENDS = ["job.completed", "job.failed", "job.cancelled"]


@contextmanager
def listening(house: House) -> Iterator[tuple[Receiver, str]]:
    """A receiver, and the secret of its endpoint."""
    with receiver() as hook:
        new = {"url": hook.url, "events": ENDS}
        made = house.customer.call("POST", "/api/webhook-endpoints", json=new)
        address = f"/api/webhook-endpoints/{made['id']}"
        try:
            yield hook, made["secret"]
        finally:
            house.customer.call("PATCH", address, json={"is_active": False})


def told(hook: Receiver, secret: str) -> dict[str, str]:
    """What became of jobs, by their ids, as the messages say."""
    messages = [one.verified(secret) for one in hook.received]
    return {one["data"]["job_id"]: one["type"] for one in messages}


def test_every_end_is_told_and_signed(one_worker: House) -> None:
    with listening(one_worker) as (hook, secret):
        done, failed = jobs.order_quick(one_worker), one_worker.customer.order("always-fails")["id"]
        unwanted = jobs.order_slow(one_worker, seconds=60)
        one_worker.customer.call("POST", f"/api/ai-jobs/{unwanted}/cancel")
        expected = {done: "job.completed", failed: "job.failed", unwanted: "job.cancelled"}
        until("all three are told", lambda: told(hook, secret) == expected)
        with pytest.raises(WebhookVerificationError):
            hook.received[0].verified("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")


def test_what_ends_while_the_control_worker_is_dead_is_told_when_it_is_back(
    one_worker: House,
) -> None:
    with listening(one_worker) as (hook, secret):
        one_worker.control.kill()
        job_id = jobs.order_quick(one_worker)
        jobs.end_of(one_worker, job_id)
        assert hook.received == []
        one_worker.control.start()
        until("it is told", lambda: told(hook, secret) == {job_id: "job.completed"})


def test_what_ends_while_redis_is_away_is_told_all_the_same(one_worker: House) -> None:
    with listening(one_worker) as (hook, secret):
        job_id = jobs.order_slow(one_worker, seconds=60)
        one_worker.redis.kill()
        one_worker.customer.call("POST", f"/api/ai-jobs/{job_id}/cancel")
        one_worker.redis.start()

        def is_told() -> bool:
            one_worker.control.start(wait=False)  # as its supervisor does, if that ended it
            return told(hook, secret) == {job_id: "job.cancelled"}

        until("it is told", is_told)


def test_a_control_worker_killed_while_it_sends_sends_again(one_worker: House) -> None:
    with listening(one_worker) as (hook, secret):
        hook.status = 503
        job_id = jobs.order_quick(one_worker)
        until("a first try", lambda: hook.received)
        one_worker.control.kill()
        hook.status = 200
        one_worker.control.start()
        until("a second one, of the same message", lambda: len(hook.received) > 1)
        assert told(hook, secret) == {job_id: "job.completed"}
        assert len(set(hook.ids)) == 1
