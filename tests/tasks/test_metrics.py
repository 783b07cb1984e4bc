"""What is published every minute, read back from an AWS that answers (moto's server)."""

import math
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import requests
from sqlalchemy import event

from models import control_turns, dispatches, fleets
from models.audit import AuditLog
from models.base import utcnow
from models.dispatches import Dispatch
from tasks import catalog, cloudwatch, metrics, outcomes, reports
from tasks.backend import Backend
from tasks.cloudwatch import Datum
from tests.fixtures import make_person
from tests.gpu_worker import aws as moto
from tests.gpu_worker.aws import Aws
from tests.tasks import away, gpu, orders

NAMESPACE = "comfyfleet/tests"
MINUTE = utcnow()  # the next that begins; of each test
EIGHT = {
    "QueueDepth",
    "BacklogPerInstance",
    "ActiveWorkers",
    "AvailableCapacity",
    "JobProcessingP50",
    "ErrorRate",
    "LeaseExpiredCount",
    "SpotInterruptionCount",
}


@pytest.fixture(autouse=True)
def next_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = utcnow().replace(second=0, microsecond=0)
    monkeypatch.setattr(sys.modules[__name__], "MINUTE", begun + timedelta(minutes=1))


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with moto.aws() as server:
        yield server


@pytest.fixture
def namespace() -> str:
    return f"{NAMESPACE}/{uuid4().hex}"


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch) -> Aws:
    for name, value in moto.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    # Asked for a metric with dimensions, moto does not look at the namespace.
    assert requests.post(f"{server.url}/moto-api/reset", timeout=10).ok
    return server


@pytest.fixture
def house(demo: Backend, aws: Aws, namespace: str) -> Iterator[Backend]:
    """Publishes; with the demo fleet."""
    yield from opened(demo, cloudwatch_namespace=namespace, cloudwatch_region=moto.REGION)


def opened(backend: Backend, **changed: Any) -> Iterator[Backend]:
    other = Backend.open(replace(backend.settings, **changed))
    yield other
    other.close()


@contextmanager
def also(backend: Backend, **changed: Any) -> Iterator[Backend]:
    yield from opened(backend, **changed)


def publish(backend: Backend, *, minutes: float = 0) -> metrics.Published:
    return metrics.run_once(backend, now=MINUTE + timedelta(minutes=minutes))


class Told:
    """What CloudWatch knows of a fleet or, without one, of the house."""

    def __init__(self, aws: Aws, namespace: str, *, fleet: str | None = None) -> None:
        self.client, self.namespace = aws.client("cloudwatch"), namespace
        self.dimensions = [{"Name": "FleetSlug", "Value": fleet}] if fleet else []
        self.dimensions.append({"Name": "Stage", "Value": "dev"})

    def values(self, metric: str, *, stat: str = "Sum") -> list[float]:
        """By minute."""
        asked = {
            "Metric": {
                "Namespace": self.namespace,
                "MetricName": metric,
                "Dimensions": self.dimensions,
            },
            "Period": 60,
            "Stat": stat,
        }
        answer = self.client.get_metric_data(
            MetricDataQueries=[{"Id": "a", "MetricStat": asked}],
            StartTime=MINUTE - timedelta(hours=2),
            EndTime=MINUTE + timedelta(hours=2),
            ScanBy="TimestampAscending",
        )
        return list(answer["MetricDataResults"][0]["Values"])

    def samples(self, metric: str) -> list[float]:
        return self.values(metric, stat="SampleCount")


@pytest.fixture
def fleet(aws: Aws, namespace: str) -> Told:
    return Told(aws, namespace, fleet=gpu.FLEET)


@pytest.fixture
def all_of_it(aws: Aws, namespace: str) -> Told:
    return Told(aws, namespace)


def names_and_dimensions(aws: Aws, namespace: str) -> dict[str, set[tuple[tuple[str, str], ...]]]:
    found: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    pages = aws.client("cloudwatch").get_paginator("list_metrics")
    for page in pages.paginate(Namespace=namespace):
        for metric in page["Metrics"]:
            dimensions = tuple(sorted((d["Name"], d["Value"]) for d in metric["Dimensions"]))
            found.setdefault(metric["MetricName"], set()).add(dimensions)
    return found


def a_busy_fleet(backend: Backend) -> None:
    """One job done, one failed, one running, two waiting; two workers."""
    ada = make_person(backend, tokens=100)
    first, second = gpu.join(backend), gpu.join(backend)
    for _ in range(5):
        orders.order(backend, ada)
    reports.complete(backend, first, gpu.take(backend, first), outputs=[gpu.IMAGE])
    reports.fail(backend, first, gpu.take(backend, first), error="boom")
    gpu.take(backend, second)


def test_the_eight_metrics_of_a_fleet_and_the_three_of_the_house(
    house: Backend, aws: Aws, namespace: str, fleet: Told, all_of_it: Told
) -> None:
    a_busy_fleet(house)
    assert publish(house) == metrics.Published(fleets=1, figures=11)
    known = names_and_dimensions(aws, namespace)
    of_fleet = {(("FleetSlug", gpu.FLEET), ("Stage", "dev"))}
    assert {name for name, found in known.items() if found == of_fleet} == EIGHT
    of_house = {"JobSubmissionLatency", "OrphanedJobsDetected", "RunPodSubmissionFailures"}
    assert {name for name, found in known.items() if found == {(("Stage", "dev"),)}} == of_house

    assert fleet.values("QueueDepth") == [3]
    assert fleet.values("ActiveWorkers") == [2]
    assert fleet.values("BacklogPerInstance") == [1.5]
    assert fleet.values("AvailableCapacity") == [2]
    assert fleet.values("ErrorRate") == [0.5]
    [median] = fleet.values("JobProcessingP50")
    assert 0 <= median < 60
    assert fleet.values("LeaseExpiredCount") == fleet.values("SpotInterruptionCount") == [0]
    assert all_of_it.values("OrphanedJobsDetected") == [0]
    assert all_of_it.values("RunPodSubmissionFailures") == [0]
    assert all_of_it.samples("JobSubmissionLatency") == [5]


def test_a_fleet_with_nothing_to_do_says_so_and_has_no_median(house: Backend, fleet: Told) -> None:
    publish(house)
    for metric in EIGHT - {"JobProcessingP50"}:
        assert fleet.values(metric) == [0], metric
    assert fleet.values("JobProcessingP50") == []


def test_everything_has_one_time_that_of_the_minute(
    house: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = set()
    to_aws = Datum.to_aws

    def noted(datum: Datum, at: datetime) -> dict[str, Any]:
        times.add(at)
        return to_aws(datum, at)

    monkeypatch.setattr(Datum, "to_aws", noted)
    assert publish(house, minutes=0.4).figures > 0
    assert times == {MINUTE}


def test_without_a_namespace_nothing_is_sent(
    demo: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert publish(demo) == metrics.Published()
    with demo.databases.central(read_only=True) as session:
        [turn] = control_turns.all_turns(session)
        assert (turn.name, turn.finished_at) == (metrics.TURN, MINUTE)


def test_without_any_fleet_the_house_has_its_figures(
    backend: Backend, aws: Aws, namespace: str
) -> None:
    with also(backend, cloudwatch_namespace=namespace, cloudwatch_region=moto.REGION) as house:
        assert publish(house) == metrics.Published(fleets=0, figures=2)


# Turns


def lose_a_lease(backend: Backend, *, minutes: float = -0.1) -> None:
    """Somebody held a job, and went silent; it was noted then."""
    ada = make_person(backend, tokens=100)
    orders.order(backend, ada)
    lease = gpu.take(backend, gpu.join(backend))
    with backend.databases.central() as session:
        dispatch = session.get_one(Dispatch, lease.dispatch_id)
        outcomes.note_lost_lease(session, dispatch, attempt=1)
        [noted] = (row for row in session.new if isinstance(row, AuditLog))
        noted.at = MINUTE + timedelta(minutes=minutes)
        dispatches.complete(session, dispatch.id)


@pytest.mark.parametrize("drift", [0, 0.3, 7, -7])
def test_two_beats_publish_each_minute_once(house: Backend, fleet: Told, drift: float) -> None:
    """The second beat is so many seconds behind, or ahead."""
    lose_a_lease(house)
    for minute in range(6):
        for beat in sorted([0.1, 0.1 + drift]):
            publish(house, minutes=minute + beat / 60)
    assert sum(fleet.values("LeaseExpiredCount")) == 1
    assert max(fleet.samples("QueueDepth")) == 1
    assert len(fleet.samples("QueueDepth")) >= 6


def test_many_at_once_publish_once(house: Backend, fleet: Told) -> None:
    lose_a_lease(house)
    with ThreadPoolExecutor(6) as threads:
        published = list(threads.map(lambda _: publish(house), range(12)))
    assert len([one for one in published if one.figures]) == 1
    assert fleet.samples("QueueDepth") == [1]
    assert fleet.values("LeaseExpiredCount") == [1]


def test_a_clock_that_jumps_does_not_silence_the_fleet(house: Backend, fleet: Told) -> None:
    lose_a_lease(house)
    for minutes in (0, 60, 1, 2, 3):
        assert publish(house, minutes=minutes).figures
    assert sum(fleet.values("LeaseExpiredCount")) == 1


def test_a_minute_late_in_the_minute_is_followed_by_the_next(house: Backend) -> None:
    assert publish(house, minutes=0.1).figures
    assert not publish(house, minutes=0.9).figures  # this minute is taken
    assert publish(house, minutes=1.01).figures
    assert publish(house, minutes=2.9).figures  # a task that waited long for its worker
    assert not publish(house, minutes=3.0).figures  # too close to what may still be sent


# Sums


def test_each_lost_lease_is_told_once(house: Backend, fleet: Told) -> None:
    for minute in range(3):
        lose_a_lease(house, minutes=minute - 0.1)
        publish(house, minutes=minute)
    publish(house, minutes=3)
    assert fleet.values("LeaseExpiredCount") == [1, 1, 1, 0]


def test_what_happened_in_minutes_that_nobody_published_is_told_later(
    house: Backend, fleet: Told
) -> None:
    publish(house)
    lose_a_lease(house, minutes=1)
    lose_a_lease(house, minutes=50)
    publish(house, minutes=90)
    assert sum(fleet.values("LeaseExpiredCount")) == 2


def test_interruptions_are_those_of_the_last_five_minutes(house: Backend, fleet: Told) -> None:
    orders.order(house, make_person(house, tokens=100))
    worker = gpu.join(house)
    lease = gpu.take(house, worker)
    outcomes.requeue(house, lease, reason="spot interruption: stop", actor=worker.actor)
    for minute in range(7):
        publish(house, minutes=minute)
    assert fleet.values("SpotInterruptionCount", stat="Maximum") == [1, 1, 1, 1, 1, 0, 0]


def test_the_latency_of_submissions_has_a_mean_and_extremes(
    house: Backend, all_of_it: Told
) -> None:
    publish(house)
    ada = make_person(house, tokens=100)
    for _ in range(4):
        orders.order(house, ada)
    publish(house, minutes=1)
    publish(house, minutes=2)
    name = "JobSubmissionLatency"
    assert all_of_it.samples(name) == [4]
    [total], [low], [high] = (all_of_it.values(name, stat=s) for s in ("Sum", "Minimum", "Maximum"))
    assert 0 <= low <= total / 4 <= high < 60_000


# AWS away, slow, or of another opinion


def test_while_aws_is_away_nothing_breaks_and_no_sum_is_lost(
    house: Backend, fleet: Told, aws: Aws, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    publish(house)
    lose_a_lease(house)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for minute in (1, 2):
        assert publish(house, minutes=minute).figures == 0
    assert caplog.text.count("CloudWatch could not be told") == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
    assert publish(house, minutes=3).figures
    assert fleet.values("LeaseExpiredCount") == [0, 1]
    assert fleet.samples("QueueDepth") == [1, 1]


def test_an_aws_that_does_not_answer_holds_up_nobody_for_long(
    house: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cloudwatch, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert publish(house).figures == 0
    assert "Read timeout" in caplog.text


def test_a_publisher_is_done_before_the_next_turn_can_begin() -> None:
    tries = cloudwatch.TRIES * (cloudwatch.CONNECT_SECONDS + cloudwatch.ANSWER_SECONDS)
    pause = 2 ** (cloudwatch.TRIES - 1)  # at the most, between tries
    assert metrics.LATE_SECONDS + tries + pause < metrics.APART_SECONDS


def test_without_credentials_it_is_said(
    house: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert publish(house).figures == 0
    assert "Unable to locate credentials" in caplog.text


def test_what_aws_refuses_does_not_stop_the_rest(
    house: Backend,
    fleet: Told,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No number goes out in a call of its own, which AWS, and moto, refuse."""
    monkeypatch.setattr(cloudwatch, "MOST_DATUMS", 7)
    monkeypatch.setattr(metrics, "_of_house", lambda *_: [a_datum(value=math.nan)])
    assert publish(house).figures == 7
    assert "CloudWatch refused 1 figures" in caplog.text
    assert fleet.samples("QueueDepth") == [1]


# Crashes, and slow databases


def test_a_publisher_that_died_after_counting_owes_its_sums_to_the_next(
    house: Backend, fleet: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> list[Datum]:
        raise SystemExit

    publish(house)
    lose_a_lease(house)
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(cloudwatch, "send", dies)
        publish(house, minutes=1)
    publish(house, minutes=2)
    assert fleet.values("LeaseExpiredCount") == [0, 1]


def test_who_counted_too_slowly_sends_its_sums_with_the_next_minute(
    house: Backend, fleet: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_a_lease(house)
    with monkeypatch.context() as patched:
        patched.setattr(metrics, "LATE_SECONDS", -1)
        assert publish(house).figures == len(EIGHT) - 1
    assert fleet.values("QueueDepth") == [0]
    assert fleet.values("LeaseExpiredCount") == []
    publish(house, minutes=1)
    assert fleet.values("LeaseExpiredCount") == [1]


def test_who_was_overtaken_while_counting_sends_nothing(
    postgres: Backend, aws: Aws, namespace: str, fleet: Told, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.seed_demo(postgres)
    terms = {"cloudwatch_namespace": namespace, "cloudwatch_region": moto.REGION}
    with also(postgres, **terms) as slow, also(postgres, **terms) as next_one:
        publish(slow)
        lose_a_lease(slow, minutes=0.5)
        later = iter([lambda: publish(next_one, minutes=2)])

        def meanwhile(*_: Any) -> None:
            for step in later:
                step()

        event.listen(slow.databases.engine("pool:main"), "before_cursor_execute", meanwhile)
        assert publish(slow, minutes=1).figures == 0
        assert publish(slow, minutes=3).figures
    assert "somebody else has gone on" in caplog.text
    assert fleet.values("LeaseExpiredCount") == [0, 1, 0]
    assert fleet.samples("QueueDepth") == [1, 1, 1]


def test_a_pool_that_is_away_keeps_no_fleet_from_being_told(
    demo: Backend, aws: Aws, namespace: str, fleet: Told
) -> None:
    terms = away.pools(demo, "main") | {
        "cloudwatch_namespace": namespace,
        "cloudwatch_region": moto.REGION,
    }
    with also(demo, **terms) as house:
        assert publish(house).figures == 9
    assert fleet.values("QueueDepth") == [0]


# Many


def a_datum(name: str = "M", *, value: float = 1, slug: str = "f") -> Datum:
    return Datum(
        name=name, unit="Count", value=value, dimensions={"FleetSlug": slug, "Stage": "dev"}
    )


def test_200_fleets_are_told_in_few_calls_none_of_them_in_two(
    house: Backend, aws: Aws, namespace: str
) -> None:
    with house.databases.central() as session:
        for number in range(199):
            fleets.put(session, stage="dev", slug=f"f-{number:03}", name="F")
    assert publish(house) == metrics.Published(fleets=200, figures=1402)
    known = names_and_dimensions(aws, namespace)
    assert len(known["QueueDepth"]) == len(known["LeaseExpiredCount"]) == 200


def test_a_call_holds_no_more_than_aws_takes() -> None:
    groups = [[a_datum(slug=f"f-{number}")] * 8 for number in range(300)]
    made = list(cloudwatch.calls(groups))
    assert [len(call) for call in made] == [1000, 1000, 400]
    assert [datum for call in made for datum in call] == [one for group in groups for one in group]
    assert list(cloudwatch.calls([])) == list(cloudwatch.calls([[]])) == []


def test_a_call_with_long_names_is_not_larger_than_aws_takes() -> None:
    groups = [[a_datum(slug="x" * 1000)] * 8 for _ in range(125)]
    made = list(cloudwatch.calls(groups))
    assert len(made) > 1
    assert all(sum(one.size_bytes for one in call) <= cloudwatch.MOST_BYTES for call in made)
