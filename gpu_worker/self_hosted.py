"""The provider `self_hosted`: the ComfyUI beside the worker.

Whatever a run ends in, nothing of it is left at work there: a prompt whose end was not seen
is cancelled before anybody hears of the failure. A ComfyUI that was stuck has to end it, and
to run a tiny prompt, before it is trusted with the next job.
"""

import logging
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

from gpu_worker import comfyui_errors, graph, outputs
from gpu_worker.cancellation import CONFIRM_SECONDS, STOPPED_SECONDS, cancel
from gpu_worker.comfyui import WITHOUT_METADATA, ComfyUI, Refused, writes_no_metadata
from gpu_worker.comfyui_socket import KeptSocket
from gpu_worker.comfyui_watch import Stalled, Stalls, Watch
from gpu_worker.graph import Graph, Meter
from gpu_worker.leftovers import Leftovers
from gpu_worker.patience import Patience
from gpu_worker.prompts_at_work import PromptsAtWork
from gpu_worker.provider import JobFailed, OutputFile, Progress, Stopped, Unwell, Work
from gpu_worker.self_hosted_run import Run

logger = logging.getLogger(__name__)

STATS_SECONDS = 3.0


class SelfHosted:
    """One run at a time."""

    name = "self_hosted"

    def __init__(
        self,
        url: str,
        *,
        stall_seconds: float = 300,
        queue_stall_seconds: float = 30,
        canary_seconds: float = 10,
        tidy_folder: Path | None = None,
    ) -> None:
        self.comfyui = ComfyUI(url)
        self.socket = KeptSocket(self.comfyui.url)
        self.stalls = Stalls(running_seconds=stall_seconds, queued_seconds=queue_stall_seconds)
        self.canary_seconds = canary_seconds
        self.leftovers = Leftovers(tidy_folder)
        self.at_work = threading.Lock()  # while a run may leave something
        self.suspicious = False  # whether the next check has to see a prompt run
        self.prompts = PromptsAtWork()
        self.looked_at_options = False

    def close(self) -> None:
        self.socket.close()
        self.comfyui.close()

    def take_over(self, folder: Path) -> None:
        self.prompts.keep_in(folder / f"prompts-{self.name}.json")
        self.leftovers.keep_in(folder / f"leftovers-{self.name}.json")

    def check(self) -> None:
        try:
            self._look_at_options(self.comfyui.stats(seconds=STATS_SECONDS))
            self._end_what_was_given_up()
            self._tidy_up()
            if self.suspicious:
                self._run_canary()
        except Refused as refused:
            raise Unwell(str(refused)) from refused
        self.suspicious = False

    def run(self, work: Work, *, progress: Progress, stop: threading.Event) -> list[OutputFile]:
        patience = Patience(stop=stop, deadline_seconds=work.deadline_seconds)
        graph.require_runnable(work.graph, output_node_id=work.output_node_id)
        run = Run(self, work, progress=progress, patience=patience)
        with self.at_work:
            self.leftovers.note(work.job_id, run.names.values())
            try:
                files = run.to_the_end()
            except Refused as refused:
                raise Unwell(str(refused)) from refused
            finally:
                run.tidy()
        progress(1.0, None)
        return files

    def execute(
        self,
        filled: Graph,
        *,
        prompt_id: str,
        names: comfyui_errors.Names,
        progress: Progress,
        patience: Patience,
        stalls: Stalls,
    ) -> dict[str, Any]:
        """Run a graph; its history entry, whether it succeeded or failed."""
        socket = self.socket.ready()
        patience.check()
        self.prompts.begin(prompt_id)
        try:
            accepted = self.comfyui.submit(filled, prompt_id=prompt_id, client_id=socket.client_id)
            if accepted.prompt_id != prompt_id:  # an older ComfyUI makes its own
                self.prompts.end(prompt_id)
                prompt_id = accepted.prompt_id
                self.prompts.begin(prompt_id)
            if accepted.node_errors:
                raise comfyui_errors.partial_acceptance(accepted.node_errors, names=names)
            entry = Watch(
                self.comfyui,
                socket,
                prompt_id=prompt_id,
                meter=Meter(filled),
                progress=progress,
                patience=patience,
                stalls=stalls,
            ).until_end()
        except Refused as refused:
            self.prompts.end(prompt_id)
            raise comfyui_errors.refusal(refused.status, refused.body, names=names) from None
        except BaseException as trouble:
            self._cancel(prompt_id, is_hurried=isinstance(trouble, Stopped))
            if self.prompts.given_up or isinstance(trouble, Stalled):
                self.suspicious = True
            raise
        self.prompts.end(prompt_id)
        return entry

    def _cancel(self, prompt_id: str, *, is_hurried: bool = False) -> bool:
        seconds = STOPPED_SECONDS if is_hurried else CONFIRM_SECONDS
        has_ended = cancel(self.comfyui, prompt_id, seconds=seconds)
        (self.prompts.end if has_ended else self.prompts.give_up)(prompt_id)
        return has_ended

    def _end_what_was_given_up(self) -> None:
        for prompt_id in self.prompts.given_up:
            if not self._cancel(prompt_id):
                raise Unwell("ComfyUI still runs a prompt that was given up.")

    def _tidy_up(self) -> None:
        """What runs left that were cut short, now that their prompts have ended."""
        if self.at_work.acquire(blocking=False):
            try:
                if not self.prompts.given_up:
                    self.leftovers.remove_noted()
            finally:
                self.at_work.release()

    def _look_at_options(self, stats: dict[str, Any]) -> None:
        if self.looked_at_options:
            return
        self.looked_at_options = True
        if not writes_no_metadata(stats):
            logger.warning(
                "Results will carry the workflow in their metadata; start ComfyUI with %s.",
                WITHOUT_METADATA,
            )

    def _run_canary(self) -> None:
        patience = Patience(stop=threading.Event(), deadline_seconds=self.canary_seconds)
        try:
            entry = self.execute(
                graph.canary(),
                prompt_id=str(uuid4()),
                names={},
                progress=lambda _share, _node: None,
                patience=patience,
                stalls=Stalls(
                    running_seconds=self.canary_seconds, queued_seconds=self.canary_seconds
                ),
            )
        except JobFailed as failed:
            raise Unwell("ComfyUI answers but runs nothing.", trace=failed.message) from failed
        self.leftovers.remove(previews=outputs.previews(entry.get("outputs")))
        if failure := comfyui_errors.failure_of(entry, names={}):
            raise Unwell("ComfyUI can't run the simplest prompt.", trace=failure.trace)
