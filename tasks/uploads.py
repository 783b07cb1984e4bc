"""Where a worker puts what a job made: one address with the lease, more by heartbeat.

The address that comes with the lease is for one output of the workflow's usual type, of any
size. Outputs of another type, and several of them, ask for addresses of their own, which pin
type and length. Keys follow from the lease and the output's name, so a worker can only write
where its lease allows, and `complete` knows where each output must lie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models import object_paths
from models.dispatches import Dispatch
from models.errors import InvalidInput
from models.files import Output
from models.object_store import SignedRequest
from models.workflows import Kind, Workflow
from tasks.backend import Backend

USUAL_TYPE = {
    Kind.IMAGE: "image/png",
    Kind.VIDEO: "video/mp4",
    Kind.AUDIO: "audio/flac",
    Kind.TEXT: "text/plain",
}


@dataclass(frozen=True, kw_only=True)
class Made:
    """An output as a worker describes it."""

    name: str
    mime_type: str
    size_bytes: int
    sha256: str | None = None


def workflow_of(backend: Backend, workflow_id: UUID) -> Workflow:
    """Its slug and kind, which hardly ever change."""
    known: Workflow | None = backend.workflows.get(str(workflow_id))
    if known is None:
        with backend.databases.central(read_only=True) as session:
            known = session.get_one(Workflow, workflow_id)
        backend.workflows.put(str(workflow_id), known)
    return known


def usual_type(backend: Backend, dispatch: Dispatch) -> str:
    return USUAL_TYPE[Kind(workflow_of(backend, dispatch.workflow_id).kind)]


def expected(backend: Backend, dispatch: Dispatch) -> SignedRequest:
    """The address of the one expected output."""
    mime_type = usual_type(backend, dispatch)
    return backend.store.presign_put(
        _key(dispatch, mime_type),
        mime_type=mime_type,
        size_bytes=None,
        seconds=backend.settings.url_seconds,
    )


def pinned(backend: Backend, dispatch: Dispatch, outputs: Sequence[Made]) -> list[dict[str, Any]]:
    """An address for each of these outputs, that takes just this type and length."""
    signed = [
        backend.store.presign_put(
            _key(dispatch, output.mime_type, output.name),
            mime_type=output.mime_type,
            size_bytes=_allowed(backend, output).size_bytes,
            seconds=backend.settings.url_seconds,
        )
        for output in outputs
    ]
    return [
        {"name": output.name, "url": request.url, "headers": request.headers}
        for output, request in zip(outputs, signed, strict=True)
    ]


def located(backend: Backend, dispatch: Dispatch, outputs: Sequence[Made]) -> list[Output]:
    """Outputs with the keys they must lie under. Refuses one that had nowhere to go."""
    _require_different_names(outputs)
    pinned_names = set(dispatch.upload_names or ())
    plain = [output for output in outputs if output.name not in pinned_names]
    if plain[1:] or (plain and plain[0].mime_type != usual_type(backend, dispatch)):
        raise InvalidInput.field(
            "outputs",
            "Ask for addresses with a heartbeat first, then upload, then complete.",
        )
    return [
        Output(
            name=output.name,
            kind=object_paths.kind(output.mime_type),
            mime_type=output.mime_type,
            size_bytes=_allowed(backend, output).size_bytes,
            object_key=_key(
                dispatch, output.mime_type, output.name if output.name in pinned_names else ""
            ),
            content_hash=output.sha256 or "",
        )
        for output in outputs
    ]


def require_possible(backend: Backend, outputs: Sequence[Made]) -> None:
    """Refuse what would get no address."""
    _require_different_names(outputs)
    for output in outputs:
        _allowed(backend, output)


def _require_different_names(outputs: Sequence[Made]) -> None:
    if len({output.name for output in outputs}) < len(outputs):
        raise InvalidInput.field("outputs", "Each needs a name of its own.")


def _allowed(backend: Backend, output: Made) -> Made:
    if output.size_bytes > backend.settings.upload_max_bytes:
        raise InvalidInput.field(
            "outputs", f"At most {backend.settings.upload_max_bytes} bytes a file."
        )
    return output


def _key(dispatch: Dispatch, mime_type: str, name: str = "") -> str:
    if dispatch.lease_token is None:
        raise ValueError(f"The dispatch {dispatch.id} is not leased.")
    return object_paths.output_key(
        dispatch.tenant_id,
        dispatch.tenant_job_id,
        mime_type,
        lease_token=dispatch.lease_token,
        name=name,
    )
