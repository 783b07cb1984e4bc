"""What is away, or was missed, holds up nobody else."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from redis import Redis

from models.base import utcnow
from models.files import File
from models.jobs import Job
from tasks import reconcile, sweepers
from tasks.backend import Backend
from tests.fixtures import make_person
from tests.tasks import away, orders
from tests.tasks.test_sweepers import add_file


@pytest.fixture
def without_main(demo: Backend) -> Iterator[Backend]:
    """Another process, for which one pool of two is away."""
    other = Backend.open(replace(demo.settings, **away.pools(demo, "main")))
    yield other
    other.close()


def test_a_pool_that_is_away_holds_up_no_other_step(demo: Backend, without_main: Backend) -> None:
    ada = make_person(demo, tokens=100, pool="second")
    job, waiting = orders.order(demo, ada), orders.order(demo, ada)
    assert orders.lease_next(demo) is not None
    demo.later.close()
    with demo.databases.tenant(ada.tenant_id) as session:
        session.get_one(Job, waiting.id).status = "submitting"
    with Redis.from_url(demo.settings.redis_url) as redis:
        redis.flushdb()
        done = reconcile.run_once(without_main, now=utcnow() + timedelta(seconds=181))
        without_main.later.close()
        assert redis.llen("gpu-default") >= 2
    assert (done.healed, done.leases_taken_back) == (1, 1)
    taken_back = orders.dispatch_of(demo, job)
    assert taken_back is not None
    assert taken_back.status == "queued"


def test_a_pool_that_is_away_holds_up_no_other_pools_files(
    demo: Backend, without_main: Backend
) -> None:
    ada = make_person(demo, pool="second")
    file = add_file(demo, ada, stored=True)
    with demo.databases.tenant(ada.tenant_id) as session:
        session.get_one(File, file.id).deleted_at = utcnow()
    assert sweepers.run_once(without_main).objects_deleted == 1
    assert demo.store.head(file.object_key) is None
