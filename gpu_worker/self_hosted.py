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

from gpu_worker import comfyui_errors, graph, leftovers, outputs
from gpu_worker.cancellation import CONFIRM_SECONDS, STOPPED_SECONDS, cancel
from gpu_worker.comfyui import WITHOUT_METADATA, ComfyUI, Refused, writes_no_metadata
from gpu_worker.comfyui_socket import KeptSocket
from gpu_worker.comfyui_watch import Stalled, Stalls, Watch
from gpu_worker.graph import Graph, Meter
from gpu_worker.outputs import Output, SavedText
from gpu_worker.patience import Patience
from gpu_worker.prompts_at_work import PromptsAtWork
from gpu_worker.provider import Asset, JobFailed, OutputFile, Progress, Stopped, Unwell, Work

logger = logging.getLogger(__name__)

STATS_SECONDS = 3.0
LAST_LOOK_SECONDS = 1.0


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
        self.tidy_folder = tidy_folder
        self.suspicious = False  # whether the next check has to see a prompt run
        self.prompts = PromptsAtWork()
        self.looked_at_options = False

    def close(self) -> None:
        self.socket.close()
        self.comfyui.close()

    def take_over(self, folder: Path) -> None:
        self.prompts.keep_in(folder / f"prompts-{self.name}.json")

    def check(self) -> None:
        try:
            self._look_at_options(self.comfyui.stats(seconds=STATS_SECONDS))
            self._end_what_was_given_up()
            if self.suspicious:
                self._run_canary()
        except Refused as refused:
            raise Unwell(str(refused)) from refused
        self.suspicious = False

    def run(self, work: Work, *, progress: Progress, stop: threading.Event) -> list[OutputFile]:
        patience = Patience(stop=stop, deadline_seconds=work.deadline_seconds)
        graph.require_runnable(work.graph, output_node_id=work.output_node_id)
        run = _Run(self, work, progress=progress, patience=patience)
        try:
            files = run.to_the_end()
        except Refused as refused:
            raise Unwell(str(refused)) from refused
        finally:
            if self.tidy_folder is not None:
                run.tidy(self.tidy_folder)
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
        if failure := comfyui_errors.failure_of(entry, names={}):
            raise Unwell("ComfyUI can't run the simplest prompt.", trace=failure.trace)


class _Run:
    """One job at one ComfyUI, and what it left there."""

    def __init__(
        self, provider: SelfHosted, work: Work, *, progress: Progress, patience: Patience
    ) -> None:
        self.provider, self.comfyui, self.work = provider, provider.comfyui, work
        self.progress, self.patience = progress, patience
        self.prompt_id = str(uuid4())
        self.uploads: dict[str, str] = {}  # ComfyUI's name of each file, and the user's
        self.entry: dict[str, Any] | None = None

    def to_the_end(self) -> list[OutputFile]:
        names = {asset.placeholder: self._upload(asset) for asset in self.work.assets}
        self.entry = self.provider.execute(
            graph.fill(self.work.graph, names),
            prompt_id=self.prompt_id,
            names=self.uploads,
            progress=self.progress,
            patience=self.patience,
            stalls=self.provider.stalls,
        )
        if failure := comfyui_errors.failure_of(self.entry, names=self.uploads):
            raise failure
        made = outputs.found(self.entry.get("outputs"), output_node_id=self.work.output_node_id)
        if not made:
            raise JobFailed("The workflow ended without a result.", code="no_output")
        return [
            self._fetch(output, name=name, number=number)
            for number, (output, name) in enumerate(zip(made, outputs.names_for(made), strict=True))
        ]

    def _upload(self, asset: Asset) -> str:
        try:
            name = self.comfyui.upload(
                asset.path, name=graph.name_for(asset), check=self.patience.check
            )
        except Refused as refused:
            if refused.status == 413:
                raise JobFailed(
                    f"{asset.filename} is larger than ComfyUI takes.", code="input_too_large"
                ) from None
            raise
        self.uploads[name] = asset.filename
        return name

    def _fetch(self, output: Output, *, name: str, number: int) -> OutputFile:
        mime_type = outputs.mime_type_of(output)
        path = self.work.folder / f"output-{number}.{outputs.ENDINGS[mime_type]}"
        if isinstance(output, SavedText):
            path.write_text(output.text, encoding="utf-8", errors="replace")
            return OutputFile(name=name, mime_type=mime_type, path=path)
        try:
            self.comfyui.download(
                filename=output.filename,
                subfolder=output.subfolder,
                to=path,
                check=self.patience.check,
            )
        except Refused as refused:
            if refused.status != 404:
                raise JobFailed(
                    "ComfyUI does not hand out the result.", code="no_output", trace=str(refused)
                ) from None
            # Answered from the cache with the name of a file that is gone.
            self.comfyui.forget_cache()
            raise Unwell("The result is gone from ComfyUI's output folder.") from None
        return OutputFile(name=name, mime_type=mime_type, path=path)

    def tidy(self, folder: Path) -> None:
        if self.entry is None:
            self.entry = self._last_entry()
        made = (self.entry or {}).get("outputs")
        leftovers.remove(
            folder, uploads=self.uploads, outputs=outputs.found(made, output_node_id=None)
        )

    def _last_entry(self) -> dict[str, Any] | None:
        """A run that was cut short may have saved something before."""
        try:
            return self.comfyui.history(self.prompt_id, seconds=LAST_LOOK_SECONDS)
        except (Unwell, Refused):
            return None
