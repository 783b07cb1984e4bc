"""A job from lease to report: each way it can end, with one report and nothing left behind."""

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from gpu_worker.assets import AssetUnavailable
from gpu_worker.provider import JobFailed, Unwell
from gpu_worker.scale_in import ScaleInProtection
from tests.gpu_worker.aws import ENVIRONMENT, GROUP, REGION
from tests.gpu_worker.backend_replies import Json, problem, text, when
from tests.gpu_worker.backend_stand_in import BackendStandIn, backend_stand_in
from tests.gpu_worker.cached import wait_for
from tests.gpu_worker.file_server import Request, file_server, whole
from tests.gpu_worker.workbench import PICTURE, Failing, Painter, Waiter, Workbench, workbench


@pytest.fixture
def webapp() -> Iterator[BackendStandIn]:
    with backend_stand_in() as server:
        yield server


@pytest.fixture
def bench(webapp: BackendStandIn, tmp_path: Path) -> Iterator[Workbench]:
    with workbench(webapp, tmp_path) as bench:
        yield bench
        assert bench.is_tidy()


@contextmanager
def at_work(bench: Workbench, **changed: Any) -> Iterator[Future[str]]:
    """A job that goes on until it is stopped; yields how it will have ended."""
    waiter = Waiter()
    bench.use(waiter, **changed)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(bench.run)
        assert waiter.began.wait(10)
        yield ending


def stored_asset(webapp: BackendStandIn, name: str, content: bytes) -> Json:
    webapp.stored[f"/storage/{name}"] = content
    return {
        "placeholder": f"{{{{{name}}}}}",
        "url": f"{webapp.url}/storage/{name}",
        "content_hash": hashlib.sha256(content).hexdigest(),
        "filename": f"{name}.png",
        "mime_type": "image/png",
        "is_primary_input": True,
    }


# Done


def test_a_job_is_run_uploaded_and_completed(bench: Workbench, webapp: BackendStandIn) -> None:
    assert bench.run() == "completed"
    name, report = bench.report()
    assert name == "complete"
    assert report["outputs"] == [
        {
            "name": "picture.png",
            "mime_type": "image/png",
            "size_bytes": len(PICTURE),
            "sha256": hashlib.sha256(PICTURE).hexdigest(),
        }
    ]
    assert set(report["timings"]) == {"assets_seconds", "run_seconds", "upload_seconds"}
    assert all(seconds >= 0 for seconds in report["timings"].values())
    assert webapp.stored == {"/storage/result": PICTURE}


def test_the_provider_gets_the_graph_the_assets_and_the_shorter_deadline(
    bench: Workbench, webapp: BackendStandIn
) -> None:
    painter = Painter()
    bench.use(painter)
    assets = [stored_asset(webapp, "first", b"one"), stored_asset(webapp, "second", b"two")]
    assets[1]["content_hash"] = None
    payload = {"graph": {"7": {"a": "ü"}}, "output_node_id": None, "assets": assets}
    assert bench.run(input_payload=payload, deadline_seconds=5) == "completed"
    assert bench.run() == "completed"
    first, second = painter.works
    assert (first.job_id, first.graph, first.output_node_id) == ("job-1", {"7": {"a": "ü"}}, None)
    assert [one.placeholder for one in first.assets] == ["{{first}}", "{{second}}"]
    assert [one.filename for one in first.assets] == ["first.png", "second.png"]
    assert first.assets[1].content_hash == ""
    assert 0 < first.deadline_seconds <= 5  # less what the assets took
    assert 5 < second.deadline_seconds <= 30  # the worker's own
    assert first.folder != second.folder


def test_the_provider_can_read_its_assets(bench: Workbench, webapp: BackendStandIn) -> None:
    painter = Painter()
    bench.use(painter)
    payload = {"graph": {}, "output_node_id": None}
    bench.run(input_payload=payload | {"assets": [stored_asset(webapp, "photo", b"pixels")]})
    assert painter.read == [b"pixels"]


# At fault: the job


def test_a_job_that_fails_is_reported_for_good(bench: Workbench) -> None:
    bench.use(Failing(JobFailed("No such model.", code="bad_graph", trace="line 1")))
    assert bench.run() == "failed"
    assert bench.report() == (
        "fail",
        {
            "error": "No such model.",
            "error_code": "bad_graph",
            "trace": "line 1",
            "retryable": False,
        },
    )
    assert bench.unwell == []


@pytest.mark.parametrize(("status", "again", "told"), [(404, False, "trace"), (403, True, "error")])
def test_a_job_fails_for_good_only_if_its_file_is_gone(
    bench: Workbench, webapp: BackendStandIn, status: int, again: bool, told: str
) -> None:
    asset = stored_asset(webapp, "photo", b"pixels")
    webapp.script("GET /storage/photo", problem(status, "refused"))
    bench.run(input_payload={"graph": {}, "output_node_id": None, "assets": [asset]})
    _, report = bench.report()
    assert report["retryable"] == again == (report.get("error_code") != "input_gone")
    assert f"answers {status}" in report[told]


def test_the_deadline_counts_from_the_first_asset(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.script("GET /storage/photo", when(threading.Event(), text("")))
    assets = [stored_asset(webapp, "photo", b"pixels")]
    payload = {"graph": {}, "output_node_id": None, "assets": assets}
    assert bench.run(input_payload=payload, deadline_seconds=0.4) == "failed"
    assert bench.report()[1]["error_code"] == "deadline_exceeded"


# At fault: the worker, or what is around it


def test_an_unwell_provider_means_another_try_and_is_told(bench: Workbench) -> None:
    unwell = Unwell("ComfyUI is gone.", trace="refused")
    bench.use(Failing(unwell))
    assert bench.run() == "queued"
    expected = {"error": "ComfyUI is gone.", "trace": "refused", "retryable": True}
    assert bench.report() == ("fail", expected)
    assert bench.unwell == [unwell]


def test_a_provider_we_do_not_have_means_another_try(bench: Workbench) -> None:
    assert bench.run(provider="cloud") == "queued"
    assert bench.report()[1]["error"] == "This worker has no provider 'cloud'."


def test_a_bug_means_another_try_with_a_trace(bench: Workbench) -> None:
    bench.use(Failing(ZeroDivisionError("by zero")))
    assert bench.run() == "queued"
    report = bench.report()[1]
    assert report["error"] == "The worker could not go on (ZeroDivisionError)."
    assert report["retryable"] is True
    assert "ZeroDivisionError: by zero" in report["trace"]


def test_a_file_that_can_not_be_had_now_means_another_try(bench: Workbench) -> None:
    bench.use(Failing(AssetUnavailable("http://storage/photo can't be had: it answers 503.")))
    assert bench.run() == "queued"
    assert bench.report()[1]["error"] == "http://storage/photo can't be had: it answers 503."
    assert bench.unwell == []


# Stopped


def test_a_worker_that_has_to_go_gives_the_job_back(bench: Workbench) -> None:
    with at_work(bench) as ending:
        bench.tools.keeper.stop_work()
        assert ending.result(timeout=10) == "queued"
    assert bench.report() == ("requeue", {"reason": "spot interruption"})


def test_a_cancelled_job_is_dropped_without_a_report(
    bench: Workbench, webapp: BackendStandIn
) -> None:
    webapp.heartbeat["cancel_requested"] = True
    with at_work(bench) as ending:
        assert ending.result(timeout=10) == "cancelled"
    assert bench.reports() == []


def test_a_job_whose_lease_is_lost_is_dropped_without_a_report(
    bench: Workbench, webapp: BackendStandIn
) -> None:
    webapp.script("heartbeat", problem(409, "lease_lost"))
    with at_work(bench) as ending:
        assert ending.result(timeout=10) == "lost"
    assert bench.reports() == []


def test_a_lease_lost_while_uploading_is_lost(bench: Workbench, webapp: BackendStandIn) -> None:
    webapp.script("heartbeat", problem(409, "lease_lost"))
    bench.use(Painter("image/webp"))  # another type: asks for an address
    assert bench.run() == "lost"
    assert bench.reports() == []


# Around it


def test_the_instance_is_protected_while_the_job_runs(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    wishes: list[str] = []

    def note(request: Request) -> None:
        wishes.extend(parse_qs(request.body.decode())["ProtectedFromScaleIn"])
        whole(b"<R><SetInstanceProtectionResult/></R>")(request)

    with file_server() as aws:
        aws.put("/", note)
        protection = ScaleInProtection(
            enabled=True,
            instance_id="i-1",
            group=GROUP,
            region=REGION,
            endpoint_url=f"http://127.0.0.1:{aws.port}",
        )
        with at_work(bench, protection=protection) as ending:
            wait_for(lambda: wishes == ["true"])
            bench.tools.keeper.stop_work()
            ending.result(timeout=10)
        wait_for(lambda: wishes == ["true", "false"])
        protection.close()


def test_a_folder_that_can_not_be_made_means_another_try(bench: Workbench) -> None:
    folder = bench.tools.folder
    bench.use(Painter(), folder=folder / "missing")
    assert bench.run() == "queued"
    assert "FileNotFoundError" in bench.report()[1]["error"]
    bench.use(Painter(), folder=folder)
