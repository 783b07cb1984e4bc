"""From an uploaded object to a file we trust: look at it, decode it, then move it.

What a user sent lies in quarantine, and its address works until it expires. So the bytes
that were decoded are the bytes that are copied to the final key (the copy names their
ETag), and nothing reads the quarantine afterwards.
"""

import tempfile
from uuid import UUID

from models import files, media, object_paths, videos
from models.errors import NotFound, NotPossibleNow, UploadMissing, UploadSizeMismatch
from models.files import File, FileStatus
from models.media import Media
from models.object_store import Stat
from models.videos import Video
from tasks.backend import Backend


def make_video(
    backend: Backend, *, tenant_id: UUID, user_id: UUID, file_id: UUID, title: str | None
) -> Video:
    """The video of an upload. Asking again returns the first one."""
    with backend.databases.tenant(tenant_id) as session:
        file = files.get(session, file_id, user_id=user_id)
    if file.status == FileStatus.PENDING:
        try:
            _accept(backend, file, title)
        except (UploadMissing, NotFound, NotPossibleNow):
            # The same call at the same time may have accepted it, and cleared the quarantine.
            with backend.databases.tenant(tenant_id) as session:
                if files.get(session, file_id, user_id=user_id).status == FileStatus.PENDING:
                    raise
    with backend.databases.tenant(tenant_id) as session:
        file = files.get(session, file_id, user_id=user_id, lock=True)
        return videos.create(session, user_id=user_id, file=file, title=title or file.filename)


def _accept(backend: Backend, file: File, title: str | None) -> None:
    stat = backend.store.head(file.object_key)
    if stat is None:
        raise UploadMissing("Send the file to the address you were given first.")
    _check_size(stat, file)
    final_key = object_paths.input_key(file.tenant_id, file.id, file.mime_type)
    with tempfile.TemporaryFile() as upload:  # has no name, so that no crash can leave it
        stat = backend.store.download(file.object_key, upload)
        _check_size(stat, file)
        found = media.probe(upload, claimed_mime_type=file.mime_type, settings=backend.settings)
        content_hash = media.content_hash(upload)
    backend.store.copy(file.object_key, final_key, etag=stat.etag)
    _trust(backend, file, final_key, content_hash, found, title)
    backend.store.delete(file.object_key)


def _check_size(stat: Stat, file: File) -> None:
    if stat.size_bytes != file.size_bytes:
        raise UploadSizeMismatch(
            f"{file.size_bytes} bytes were announced, {stat.size_bytes} arrived."
        )


def _trust(
    backend: Backend,
    file: File,
    final_key: str,
    content_hash: str,
    found: Media,
    title: str | None,
) -> None:
    """The video at once: a file that was accepted and belongs to none would be kept for ever."""
    with backend.databases.tenant(file.tenant_id) as session:
        accepted = files.accept(
            session,
            file.id,
            user_id=file.user_id,
            object_key=final_key,
            content_hash=content_hash,
            kind=found.kind,
            mime_type=found.mime_type,
            width=found.width,
            height=found.height,
            duration_seconds=found.duration_seconds,
        )
        videos.create(session, user_id=file.user_id, file=accepted, title=title or file.filename)
