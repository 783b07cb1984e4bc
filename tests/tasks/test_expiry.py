"""Media is kept for as long as the settings say, and for as long as a job needs it."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import select, text

from models import jobs, ledger, ledger_audit
from models.base import utcnow
from models.errors import NotFound, NotPossibleNow
from models.files import File
from models.jobs import Job
from models.session import make_engine
from models.videos import Video
from tasks import catalog, expiry, outcomes, sweepers
from tasks.backend import Backend
from tasks.expiry import Expired
from tests.fixtures import Person, make_person
from tests.tasks import away, gpu, media, orders

DAY = timedelta(days=1)
MONTH = timedelta(days=30, seconds=1)


@pytest.fixture
def ada(demo: Backend) -> Person:
    return make_person(demo, tokens=1000)


@pytest.fixture(params=["local", "s3"])
def store(demo: Backend, request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The backend, on each storage."""
    if request.param == "local":
        yield demo
    else:
        with media.on_s3(demo) as other:
            catalog.seed_demo(other)
            yield other


def expire(backend: Backend, *, later: timedelta = MONTH) -> Expired:
    return expiry.run_once(backend, now=utcnow() + later)


def with_days(backend: Backend, **days: int) -> Backend:
    return replace(backend, settings=replace(backend.settings, **days))  # type: ignore[arg-type]


def test_an_upload_and_a_result_run_out_with_their_objects(store: Backend, ada: Person) -> None:
    upload, tried = media.upload(store, ada), media.upload(store, ada)
    job = media.result(store, ada, tried.id)
    assert expire(store, later=29 * DAY) == Expired()
    assert expire(store) == Expired(videos_expired=2, objects_deleted=3)
    assert expire(store) == Expired()
    for video in (upload, tried):
        assert media.video_of(store, ada, video.id).status == "expired"
        assert not media.is_there(store, video.original_file)
    [made] = media.results(store, job)
    assert made.purged_at is not None
    assert not media.is_there(store, made)
    assert media.stored(store, job).status == "completed"  # what it cost stays as it was


def test_results_of_a_job_without_media_run_out_too(store: Backend, ada: Person) -> None:
    job, other = media.result(store, ada), orders.order(store, ada)
    assert expire(store, later=29 * DAY) == Expired()
    assert [expire(store) for _ in range(2)] == [
        Expired(results_expired=1, objects_deleted=1),
        Expired(),
    ]
    [made] = media.results(store, job)
    assert not media.is_there(store, made)
    assert media.stored(store, other).status == "queued"


def test_a_video_is_dated_when_it_comes_to_rest(demo: Backend, ada: Person) -> None:
    ours = with_days(demo, upload_days=7, result_days=90)
    uploaded, made, failed = (media.upload(demo, ada) for _ in range(3))
    job = media.result(demo, ada, made.id)
    outcomes.cancel(demo, ada.tenant_id, media.order(demo, ada, failed.id).id)
    working = media.upload(demo, ada)
    media.order(demo, ada, working.id)
    sweepers.run_once(ours)
    dates = [media.video_of(demo, ada, video.id).expires_at for video in (uploaded, made, working)]
    assert job.completed_at is not None
    assert dates == [uploaded.created_at + 7 * DAY, job.completed_at + 90 * DAY, None]
    tried = media.video_of(demo, ada, failed.id)
    assert tried.status == "failed"
    assert tried.expires_at is not None
    assert tried.expires_at > failed.created_at + 7 * DAY  # since it was tried


def test_an_order_takes_the_date_away(demo: Backend, ada: Person) -> None:
    video = media.upload(demo, ada)
    sweepers.run_once(demo)
    assert media.video_of(demo, ada, video.id).expires_at is not None
    job = media.order(demo, ada, video.id)
    assert media.video_of(demo, ada, video.id).expires_at is None
    sweepers.run_once(demo)
    assert media.video_of(demo, ada, video.id).expires_at is None
    outcomes.cancel(demo, ada.tenant_id, job.id)
    sweepers.run_once(demo)
    assert media.video_of(demo, ada, video.id).expires_at is not None


def test_a_result_is_kept_though_a_later_try_failed(demo: Backend, ada: Person) -> None:
    ours = with_days(demo, upload_days=1, result_days=90)
    video = media.upload(demo, ada)
    media.result(demo, ada, video.id)
    outcomes.cancel(demo, ada.tenant_id, media.order(demo, ada, video.id).id)
    assert media.video_of(demo, ada, video.id).status == "failed"
    assert expire(ours, later=89 * DAY) == Expired()
    assert expire(ours, later=91 * DAY).videos_expired == 1


@pytest.mark.parametrize(
    ("days", "kept"),
    [
        ({"upload_days": 0, "result_days": 0}, {"upload", "made", "card"}),
        ({"upload_days": 0, "result_days": 1}, {"upload"}),
        ({"upload_days": 1, "result_days": 0}, {"made", "card"}),
    ],
)
def test_never_is_never(demo: Backend, ada: Person, days: dict[str, int], kept: set[str]) -> None:
    """Also for what had a date before."""
    files = {"upload": media.upload(demo, ada).original_file}
    made = media.upload(demo, ada)
    media.result(demo, ada, made.id)
    files |= {"made": made.original_file}
    [files["card"]] = media.results(demo, media.result(demo, ada))
    sweepers.run_once(demo)
    for _ in range(2):
        expire(with_days(demo, **days), later=1000 * DAY)
    assert {name for name, file in files.items() if media.is_there(demo, file)} == kept


def test_a_longer_time_counts_at_once_a_shorter_one_from_then_on(
    demo: Backend, ada: Person
) -> None:
    longer, shorter = with_days(demo, upload_days=90), with_days(demo, upload_days=1)
    video = media.upload(demo, ada)
    sweepers.run_once(demo)
    assert expire(shorter, later=2 * DAY).videos_expired == 0
    assert expire(longer).videos_expired == 0
    assert media.video_of(demo, ada, video.id).expires_at == video.created_at + 90 * DAY
    media.upload(demo, ada)
    assert expire(shorter, later=2 * DAY).videos_expired == 1
    assert expire(longer, later=91 * DAY).videos_expired == 1


def test_what_a_job_needs_is_kept(demo: Backend, ada: Person) -> None:
    """As its video, or as another input by the id of a file; waiting or at work."""
    working, waiting, input_of_another, idle = (media.upload(demo, ada) for _ in range(4))
    [made] = media.results(demo, media.result(demo, ada))
    media.order(demo, ada, working.id)
    gpu.take(demo, gpu.join(demo))
    media.order(demo, ada, waiting.id)
    orders.order(demo, ada, effect="image-invert", image=str(input_of_another.original_file_id))
    orders.order(demo, ada, effect="image-invert", image=str(made.id))
    assert expire(demo) == Expired(videos_expired=1, objects_deleted=1)
    needed = [video.original_file for video in (working, waiting, input_of_another)]
    assert all(media.is_there(demo, file) for file in [*needed, made])
    assert not media.is_there(demo, idle.original_file)
    with demo.databases.tenant(ada.tenant_id) as session:
        active = [job.id for job in session.query(Job) if job.is_active]
    for job_id in active:
        outcomes.cancel(demo, ada.tenant_id, job_id)
    done = expire(demo, later=2 * MONTH)
    assert (done.videos_expired, done.results_expired, done.objects_deleted) == (3, 1, 4)


def test_a_video_that_a_user_deleted_is_not_expired(demo: Backend, ada: Person) -> None:
    video = media.upload(demo, ada)
    sweepers.run_once(demo)
    with demo.databases.tenant(ada.tenant_id) as session:
        jobs.remove_video(session, video.id, user_id=ada.user_id)
    assert expire(demo).videos_expired == 0
    assert sweepers.run_once(demo).objects_deleted == 1


def test_an_expired_video_takes_no_order_and_costs_nothing(demo: Backend, ada: Person) -> None:
    video = media.upload(demo, ada)
    expire(demo)
    with pytest.raises(NotPossibleNow, match="have expired"):
        media.order(demo, ada, video.id)
    with pytest.raises(NotFound):
        orders.order(demo, ada, effect="image-invert", image=str(video.original_file_id))
    assert balance(demo, ada) == 1000


def balance(backend: Backend, person: Person) -> int:
    with backend.databases.tenant(person.tenant_id) as session:
        assert list(ledger_audit.disagreements(session)) == []
        return ledger.balance(session, user_id=person.user_id)


def test_a_storage_that_is_away_delays_the_objects_only(demo: Backend, ada: Person) -> None:
    video = media.upload(demo, ada)
    media.result(demo, ada)
    nowhere = {"storage_url": "s3://bucket", "s3_endpoint_url": "http://127.0.0.1:1"}
    without = Backend.open(replace(demo.settings, **nowhere))  # type: ignore[arg-type]
    assert expire(without) == Expired(videos_expired=1, results_expired=1)
    without.close()
    assert media.is_there(demo, video.original_file)
    assert sweepers.run_once(demo).objects_deleted == 2
    assert not media.is_there(demo, video.original_file)


def test_a_pool_that_is_away_holds_up_no_other(demo: Backend, ada: Person) -> None:
    bob = make_person(demo, pool="second")
    hers, his = media.upload(demo, ada), media.upload(demo, bob)
    other = Backend.open(replace(demo.settings, **away.pools(demo, "main")))
    assert expire(other) == Expired(videos_expired=1, objects_deleted=1)
    other.close()
    assert media.is_there(demo, hers.original_file)
    assert not media.is_there(demo, his.original_file)


def test_one_bad_item_stops_nobody(demo: Backend, ada: Person) -> None:
    people = [make_person(demo, tokens=100) for _ in range(3)]
    uploads = [media.upload(demo, person) for person in people]
    media.order(demo, people[0], uploads[0].id)
    with demo.databases.tenant(people[0].tenant_id) as session:
        session.query(Job).one().input_payload = {"nobody": "can read this"}
    media.upload(demo, people[0])
    with demo.databases.tenant(people[1].tenant_id) as session:
        session.query(File).one().object_key = "no key of ours"
    done = expire(demo)
    assert (done.videos_expired, done.objects_deleted) == (2, 1)
    assert not media.is_there(demo, uploads[2].original_file)


def test_two_at_once_expire_each_thing_once(postgres: Backend) -> None:
    catalog.seed_demo(postgres)
    people = [make_person(postgres, tokens=100) for _ in range(8)]
    uploads = [media.upload(postgres, person) for person in people]
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda _: expire(postgres), range(4)))
    assert sum(one.videos_expired for one in done) == len(uploads)
    assert not any(media.is_there(postgres, video.original_file) for video in uploads)


def order_video(backend: Backend, person: Person, video: Video) -> Job:
    """On the hot path."""
    return media.order(backend, person, video.id)


def order_file(backend: Backend, person: Person, video: Video) -> Job:
    """By the id of its file, as any input but the first may be named."""
    file_id = str(video.original_file_id)
    return orders.order(backend, person, effect="image-invert", image=file_id)


OrderIt = Callable[[Backend, Person, Video], Job]


@pytest.mark.parametrize("order_it", [order_video, order_file])
def test_an_order_that_comes_first_keeps_its_media(postgres: Backend, order_it: OrderIt) -> None:
    """The order holds the wallet and waits for something else; the expiry waits for the wallet."""
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    video = media.upload(postgres, ada)
    sweepers.run_once(postgres)
    with ThreadPoolExecutor(2) as threads:
        with postgres.databases.pool("main") as session:
            if order_it is order_video:
                session.execute(select(Video).with_for_update(of=Video))
            else:
                session.execute(text("LOCK TABLE ai_jobs IN SHARE MODE"))
            ordering = threads.submit(order_it, postgres, ada, video)
            await_waiting(postgres, 1)
            expiring = threads.submit(expire, postgres)
            await_waiting(postgres, 2)
        ordering.result(60)
        assert expiring.result(60) == Expired()
    assert media.is_there(postgres, video.original_file)
    assert not media.video_of(postgres, ada, video.id).original_file.deleted_at


@pytest.mark.parametrize("order_it", [order_video, order_file])
def test_an_order_that_comes_second_is_refused(postgres: Backend, order_it: OrderIt) -> None:
    catalog.seed_demo(postgres)
    ada = make_person(postgres, tokens=100)
    video = media.upload(postgres, ada)
    sweepers.run_once(postgres)
    with ThreadPoolExecutor(2) as threads:
        with postgres.databases.pool("main") as session:
            session.execute(text("LOCK TABLE files IN SHARE MODE"))
            expiring = threads.submit(expire, postgres)
            await_waiting(postgres, 1)
            ordering = threads.submit(order_it, postgres, ada, video)
            await_waiting(postgres, 2)
        assert expiring.result(60) == Expired(videos_expired=1, objects_deleted=1)
        assert isinstance(ordering.exception(60), NotPossibleNow | NotFound)
    assert balance(postgres, ada) == 100


def await_waiting(backend: Backend, count: int) -> None:
    """Until so many wait for a lock in the pool."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    owner = make_engine(backend.settings.pools["main"], as_owner=True)
    with owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(6000):
            if connection.scalar(waiting) == count:
                break
            time.sleep(0.01)
        else:
            raise AssertionError(f"{count} never waited.")
    owner.dispose()


def test_orders_and_expiries_in_a_crowd(postgres: Backend) -> None:
    """However they meet: what was ordered keeps its media, what expired was not ordered."""
    catalog.seed_demo(postgres)
    people = [make_person(postgres, tokens=100) for _ in range(20)]
    uploads = {person: media.upload(postgres, person) for person in people}
    sweepers.run_once(postgres)

    def try_to_order(person: Person) -> UUID | None:
        try:
            return media.order(postgres, person, uploads[person].id).id
        except NotPossibleNow:
            return None

    with ThreadPoolExecutor(6) as threads:
        expiring = [threads.submit(expire, postgres) for _ in range(2)]
        made = dict(zip(people, threads.map(try_to_order, people), strict=True))
        [one.result(60) for one in expiring]
    for person, job_id in made.items():
        video = media.video_of(postgres, person, uploads[person].id)
        is_kept = media.is_there(postgres, video.original_file)
        assert (video.status == "processing") == is_kept == (job_id is not None)
    for person in people:
        assert balance(postgres, person) <= 100
