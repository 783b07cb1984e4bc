"""One job, from lease to report, as a straight line.

fetch the assets → run the graph → upload what it made → complete

Whatever comes in between ends in exactly one report, or in none if the job is not ours any
more: `fail` for good when the job is at fault, `fail` for another try when we are, `requeue`
when the worker has to go. That one is sent at once, while the provider is still being stopped:
a ComfyUI that does not end must not cost the job a try. Its folder is removed in every case.
"""

import logging
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker import logs
from gpu_worker.assets import AssetCache, AssetGone, AssetUnavailable
from gpu_worker.backend import Backend, LeaseLost, Refused, Unreachable
from gpu_worker.insistence import Insistence
from gpu_worker.lease import Lease
from gpu_worker.lease_keeper import CANCELLED, STOPPING, Held, LeaseKeeper
from gpu_worker.patience import Patience
from gpu_worker.provider import Asset, JobFailed, Provider, Stopped, Unwell, Work
from gpu_worker.scale_in import ScaleInProtection
from gpu_worker.timings import Timings
from gpu_worker.uploads import Uploads

logger = logging.getLogger(__name__)

REPORT_SECONDS = 900.0  # how long a report is repeated while the webapp is away
STOPPED_SECONDS = 2.0  # the same, once the worker has to go


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Everything a job needs."""

    backend: Backend
    keeper: LeaseKeeper
    cache: AssetCache
    uploads: Uploads
    providers: Mapping[str, Provider]
    protection: ScaleInProtection
    folder: Path
    job_seconds: float
    stop_reason: Callable[[], str]
    on_unwell: Callable[[Unwell], None]
    report_seconds: float = REPORT_SECONDS
    stopped_seconds: float = STOPPED_SECONDS


def run(tools: Tools, lease: Lease) -> str:
    """Run a leased job to its report; returns how it ended."""
    tools.protection.busy()
    try:
        with tools.keeper.hold(lease) as held:
            outcome = _run(tools, held)
    finally:
        tools.protection.idle()
    logger.info("Job %s: %s.", lease.job_id, outcome)
    return outcome


def _run(tools: Tools, held: Held) -> str:
    report = Report(tools, held)
    held.on_interrupt(report.hand_back)
    try:
        made, timings = _work(tools, held)
    except (LeaseLost, Stopped):
        return report.stopped()
    except (JobFailed, AssetGone) as failed:
        return report.failed(failed)
    except Unwell as unwell:
        tools.on_unwell(unwell)
        return report.retryable(unwell.message, trace=unwell.trace)
    except AssetUnavailable as away:
        return report.retryable(str(away))
    except Exception as bug:
        logger.exception("Job %s went wrong in the worker.", held.lease.job_id)
        return report.retryable(
            f"The worker could not go on ({type(bug).__name__}).", trace=traceback.format_exc()
        )
    return report.completed(outputs=made, timings=timings.seconds)


def _work(tools: Tools, held: Held) -> tuple[list[dict[str, Any]], Timings]:
    lease, timings = held.lease, Timings()
    patience = Patience(
        stop=held.stop, deadline_seconds=min(lease.deadline_seconds, tools.job_seconds)
    )
    provider = tools.providers.get(lease.provider)
    if provider is None:
        raise Unwell(f"This worker has no provider {lease.provider!r}.")
    with (
        tempfile.TemporaryDirectory(dir=tools.folder, prefix="job-") as folder,
        ExitStack() as in_use,
    ):
        with timings.of("assets"):
            assets = [_asset(tools, patience, in_use, asset) for asset in lease.assets]
        work = Work(
            job_id=lease.job_id,
            graph=lease.graph,
            output_node_id=lease.output_node_id,
            assets=assets,
            deadline_seconds=patience.left_seconds,
            folder=Path(folder),
        )
        with timings.of("run"):
            files = provider.run(work, progress=held.progress, stop=held.stop)
        with timings.of("upload"):
            return tools.uploads.send(held, files, patience=patience), timings


def _asset(tools: Tools, patience: Patience, in_use: ExitStack, asset: dict[str, Any]) -> Asset:
    fetching = tools.cache.fetch(
        asset["url"],
        asset["content_hash"],
        stop=patience.stop,
        longest_seconds=patience.left_seconds,
    )
    try:
        path = in_use.enter_context(fetching)
    except AssetUnavailable:
        patience.check()  # it may be the whole job that took too long
        raise
    return Asset(
        placeholder=asset["placeholder"],
        path=path,
        filename=asset["filename"],
        mime_type=asset["mime_type"],
        content_hash=asset["content_hash"] or "",
    )


class Report:
    """The one report on a job: whoever begins first makes it, the job's end or a stop.

    It is repeated while the webapp is away.
    """

    def __init__(self, tools: Tools, held: Held) -> None:
        self._tools, self._held = tools, held
        self._job_id = held.lease.job_id
        self._beginning = threading.Lock()
        self._begun = False
        self._handed_back = ""

    def hand_back(self) -> None:
        """If the worker has to go: in a thread of its own, beside the end of the work."""
        if self._held.why != STOPPING:
            self._held.reported.set()  # the webapp knows already
        elif self._begin():
            threading.Thread(target=logs.carried(self._requeue), daemon=True).start()

    def stopped(self) -> str:
        if self._held.why == STOPPING:
            return self._outcome(lambda: "lost")
        return CANCELLED if self._held.why == CANCELLED else "lost"

    def completed(self, **made: Any) -> str:
        return self._outcome(lambda: self._complete(**made))

    def failed(self, failed: JobFailed | AssetGone) -> str:
        if isinstance(failed, JobFailed):
            message, code, trace = failed.message, failed.code, failed.trace
        else:
            message, code, trace = "A file of the job is gone.", "input_gone", str(failed)
        return self._outcome(
            lambda: self._fail(error=message, error_code=code, trace=trace, retryable=False)
        )

    def retryable(self, message: str, *, trace: str = "") -> str:
        return self._outcome(lambda: self._fail(error=message, trace=trace, retryable=True))

    def _begin(self) -> bool:
        """Whether nobody has before."""
        with self._beginning:
            is_first, self._begun = not self._begun, True
        return is_first

    def _outcome(self, report: Callable[[], str]) -> str:
        if self._begin():
            try:
                return report()
            finally:
                self._held.reported.set()
        self._held.reported.wait()
        return self._handed_back

    def _requeue(self) -> None:
        self._handed_back = "unreported"
        try:
            reason = self._tools.stop_reason()
            self._handed_back = self._send(self._tools.backend.requeue, reason=reason)
        finally:
            self._held.reported.set()

    def _complete(self, **made: Any) -> str:
        try:
            return self._insist(self._tools.backend.complete, **made)
        except Refused as refused:
            # Without this, the job would wait for its lease to run out.
            logger.error("The results of job %s were refused: %s", self._job_id, refused)
            return self._fail(
                error=f"The results were refused: {refused.detail}", trace="", retryable=True
            )

    def _fail(self, **report: Any) -> str:
        return self._send(self._tools.backend.fail, **report)

    def _send(self, call: Callable[..., str], **report: Any) -> str:
        try:
            return self._insist(call, **report)
        except Refused as refused:
            logger.error("The report on job %s was refused: %s", self._job_id, refused)
            return "refused"

    def _insist(self, call: Callable[..., str], **report: Any) -> str:
        """Long while the worker may stay, and a moment longer once it has to go."""
        patience = Insistence(seconds=self._tools.report_seconds, stop=self._held.stop)
        haste = Insistence(seconds=self._tools.stopped_seconds, stop=threading.Event())
        while True:
            try:
                return call(self._held.lease, **report)
            except LeaseLost as lost:
                logger.warning("Job %s: the report came too late: %s", self._job_id, lost)
                return "lost"
            except Unreachable as away:
                logger.warning("The report on job %s waits: %s", self._job_id, away)
                if not (patience.pause() or haste.pause()):
                    return "unreported"
