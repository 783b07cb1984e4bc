"""The report on a job: repeated while the webapp is away, and taken for what it was told."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_worker.provider import JobFailed, OutputFile, Progress, Stopped, Unwell, Work
from tests.gpu_worker.backend_replies import dropped, problem, says, text, when
from tests.gpu_worker.backend_stand_in import BackendStandIn, backend_stand_in
from tests.gpu_worker.cached import wait_for
from tests.gpu_worker.workbench import Failing, Painter, Waiter, Workbench, workbench

AWAY = problem(503, "dependency_unavailable")


@pytest.fixture
def webapp() -> Iterator[BackendStandIn]:
    with backend_stand_in() as server:
        yield server


@pytest.fixture
def bench(webapp: BackendStandIn, tmp_path: Path) -> Iterator[Workbench]:
    with workbench(webapp, tmp_path) as bench:
        yield bench
        assert bench.is_tidy()


def test_a_report_is_repeated_while_the_webapp_is_away(
    bench: Workbench, webapp: BackendStandIn
) -> None:
    webapp.script("complete", AWAY, dropped, text("<h1>Starting</h1>"))
    assert bench.run() == "completed"
    first, *others = [asked.content for asked in webapp.calls("complete")]
    assert others == [first] * 3
    assert len(bench.reports()) == 4  # the same one, and no other


def test_a_failure_is_repeated_too(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.script("fail", AWAY)
    bench.use(Failing(JobFailed("No.")))
    assert bench.run() == "failed"
    assert len(webapp.calls("fail")) == 2


def test_a_report_that_nobody_takes_is_given_up(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.always("complete", AWAY)
    bench.use(Painter(), report_seconds=0.3, stopped_seconds=0)
    assert bench.run() == "unreported"
    assert len(bench.reports()) > 1


def test_a_report_that_comes_too_late_is_lost(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.script("complete", AWAY, problem(409, "lease_lost"))
    assert bench.run() == "lost"
    assert [name for name, _ in bench.reports()] == ["complete", "complete"]


def test_refused_results_are_told_as_a_failure(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.script("complete", problem(422, "upload_missing", "It is not there."))
    assert bench.run() == "queued"
    [_, (name, report)] = bench.reports()
    assert name == "fail"
    assert report == {
        "error": "The results were refused: It is not there.",
        "trace": "",
        "retryable": True,
    }


def test_a_refused_failure_is_not_repeated(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.always("fail", problem(422, "invalid_input"))
    bench.use(Failing(JobFailed("No.")))
    assert bench.run() == "refused"
    assert len(bench.reports()) == 1


def test_giving_back_is_repeated_for_a_moment(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.script("requeue", AWAY, dropped)
    bench.use(Waiter())
    bench.tools.keeper.stop_work()
    assert bench.run() == "queued"
    assert len(webapp.calls("requeue")) == 3


def test_giving_back_is_given_up_after_a_moment(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.always("requeue", AWAY)
    bench.use(Waiter(), report_seconds=3600, stopped_seconds=0.3)
    bench.tools.keeper.stop_work()
    assert bench.run() == "unreported"
    assert len(webapp.calls("requeue")) > 1


class Deaf(Waiter):
    """Notices a stop only when the test says so, and then ends as it is told."""

    def __init__(self, ending: Exception | None) -> None:
        super().__init__()
        self.ending = ending
        self.notices = threading.Event()

    def run(self, work: Work, *, progress: Progress, stop: threading.Event) -> list[OutputFile]:
        files = Painter.run(self, work, progress=progress, stop=stop)
        self.began.set()
        assert self.notices.wait(20)
        if self.ending is not None:
            raise self.ending
        return files


@pytest.mark.parametrize("ending", [None, Stopped(), JobFailed("No."), Unwell("Ill."), KeyError()])
def test_giving_back_does_not_wait_for_the_provider_and_is_the_only_report(
    bench: Workbench, webapp: BackendStandIn, ending: Exception | None
) -> None:
    deaf = Deaf(ending)
    bench.use(deaf)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(bench.run)
        assert deaf.began.wait(10)
        bench.tools.keeper.stop_work()
        assert bench.tools.keeper.await_report(10)
        assert bench.report() == ("requeue", {"reason": "spot interruption"})
        deaf.notices.set()
        assert outcome.result(timeout=10) == "queued"
    assert len(bench.reports()) == 1


def test_the_job_has_not_ended_before_it_was_given_back(
    bench: Workbench, webapp: BackendStandIn
) -> None:
    may_answer = threading.Event()
    webapp.script("requeue", when(may_answer, says({"status": "queued"})))
    bench.use(Waiter())
    bench.tools.keeper.stop_work()
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(bench.run)
        wait_for(lambda: webapp.calls("requeue") != [])
        assert not bench.tools.keeper.await_report(0.2)
        assert not outcome.done()
        may_answer.set()
        assert outcome.result(timeout=10) == "queued"


def test_a_stop_while_a_report_waits_hurries_it(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.always("complete", AWAY)
    bench.use(Painter(), report_seconds=3600, stopped_seconds=0.3)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(bench.run)
        wait_for(lambda: len(webapp.calls("complete")) > 1)
        bench.tools.keeper.stop_work()
        assert ending.result(timeout=10) == "unreported"


def test_a_stop_while_a_report_waits_does_not_lose_it(
    bench: Workbench, webapp: BackendStandIn
) -> None:
    webapp.always("complete", AWAY)
    bench.use(Painter(), report_seconds=3600, stopped_seconds=10)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(bench.run)
        wait_for(lambda: len(webapp.calls("complete")) > 0)
        bench.tools.keeper.stop_work()
        webapp.script("complete")
        assert ending.result(timeout=10) == "completed"


def test_a_forgotten_worker_registers_anew_and_reports(
    bench: Workbench, webapp: BackendStandIn
) -> None:
    webapp.tokens.clear()
    assert bench.run() == "completed"
    assert len(webapp.calls("complete")) == 2
    assert len(webapp.calls("register")) == 2
