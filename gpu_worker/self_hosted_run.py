"""One job at the ComfyUI beside the worker, and what it leaves there."""

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gpu_worker import comfyui_errors, graph, outputs
from gpu_worker.comfyui import Refused
from gpu_worker.outputs import Output, SavedText
from gpu_worker.patience import Patience
from gpu_worker.provider import Asset, JobFailed, OutputFile, Progress, Unwell, Work

if TYPE_CHECKING:
    from gpu_worker.self_hosted import SelfHosted

LAST_LOOK_SECONDS = 1.0


class Run:
    def __init__(
        self, provider: "SelfHosted", work: Work, *, progress: Progress, patience: Patience
    ) -> None:
        self.provider, self.comfyui, self.work = provider, provider.comfyui, work
        self.progress, self.patience = progress, patience
        self.prompt_id = str(uuid4())
        self.names = {asset.placeholder: graph.name_for(asset) for asset in work.assets}
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
                asset.path, name=self.names[asset.placeholder], check=self.patience.check
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

    def tidy(self) -> None:
        """At once, but for what a prompt that goes on may still save: that stays noted."""
        leftovers = self.provider.leftovers
        if not leftovers.is_wanted:
            return
        if self.entry is None:
            self.entry = self._last_entry()
        made = (self.entry or {}).get("outputs")
        leftovers.remove(
            uploads=self.uploads,
            saved=outputs.found(made, output_node_id=None),
            previews=outputs.previews(made),
        )
        if not self.provider.prompts.given_up:
            leftovers.remove_noted()

    def _last_entry(self) -> dict[str, Any] | None:
        """A run that was cut short may have saved something before."""
        try:
            return self.comfyui.history(self.prompt_id, seconds=LAST_LOOK_SECONDS)
        except (Unwell, Refused):
            return None
