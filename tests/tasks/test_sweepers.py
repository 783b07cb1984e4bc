"""Nothing that nobody will come back for is kept, and nothing else is removed."""

from datetime import timedelta
from uuid import uuid4

from models import files, object_paths
from models.base import utcnow
from models.files import File, FileStatus
from tasks import sweepers
from tasks.backend import Backend
from tests.fixtures import Person, make_person


def add_file(backend: Backend, person: Person, *, stored: bool = False) -> File:
    file_id = uuid4()
    place = object_paths.input_key if stored else object_paths.upload_key
    key = place(person.tenant_id, file_id, "image/png")
    backend.store.write(key, b"bytes", "image/png")
    with backend.databases.tenant(person.tenant_id) as session:
        file = files.announce(
            session,
            user_id=person.user_id,
            filename="a.png",
            mime_type="image/png",
            size_bytes=5,
            file_id=file_id,
            object_key=key,
        )
        if stored:
            file.status = FileStatus.STORED
    return file


def reread(backend: Backend, file: File) -> File:
    with backend.databases.tenant(file.tenant_id) as session:
        return session.get_one(File, file.id)


def test_an_upload_never_finished_is_removed_after_its_time(backend: Backend) -> None:
    ada = make_person(backend)
    unfinished, kept = add_file(backend, ada), add_file(backend, ada, stored=True)
    assert sweepers.run_once(backend) == sweepers.Swept(0, 0)
    tomorrow = utcnow() + timedelta(seconds=86_401)
    assert sweepers.run_once(backend, now=tomorrow) == sweepers.Swept(1, 1)
    assert sweepers.run_once(backend, now=tomorrow) == sweepers.Swept(0, 0)
    assert backend.store.head(unfinished.object_key) is None
    assert backend.store.head(kept.object_key) is not None
    assert reread(backend, unfinished).purged_at is not None
    assert reread(backend, kept).deleted_at is None


def test_an_upload_in_parts_is_given_up_whole(backend: Backend) -> None:
    ada, file_id = make_person(backend), uuid4()
    key = object_paths.upload_key(ada.tenant_id, file_id, "video/mp4")
    upload_id = backend.store.start_multipart(key, "video/mp4")
    with backend.databases.tenant(ada.tenant_id) as session:
        files.announce(
            session,
            user_id=ada.user_id,
            filename="a.mp4",
            mime_type="video/mp4",
            size_bytes=200_000_000,
            file_id=file_id,
            object_key=key,
            upload_id=upload_id,
        )
    swept = sweepers.run_once(backend, now=utcnow() + timedelta(days=2))
    assert swept == sweepers.Swept(1, 1)


def test_a_deleted_file_loses_its_object_even_after_a_crash(backend: Backend) -> None:
    """Marked, and then the process died: the sweeper finds the mark."""
    ada = make_person(backend)
    file = add_file(backend, ada, stored=True)
    with backend.databases.tenant(ada.tenant_id) as session:
        session.get_one(File, file.id).deleted_at = utcnow()
    assert sweepers.run_once(backend).objects_deleted == 1
    assert backend.store.head(file.object_key) is None


def test_what_a_crash_left_while_a_file_was_accepted_goes_too(backend: Backend) -> None:
    """Copied to its final key, and then the process died."""
    ada = make_person(backend)
    file = add_file(backend, ada)
    final_key = object_paths.input_key(ada.tenant_id, file.id, "image/png")
    backend.store.copy(file.object_key, final_key)
    sweepers.run_once(backend, now=utcnow() + timedelta(days=2))
    assert backend.store.head(final_key) is None
    assert backend.store.head(file.object_key) is None


def test_what_was_sent_again_after_it_was_accepted_is_cleared(backend: Backend) -> None:
    ada = make_person(backend)
    leftover = object_paths.upload_key(ada.tenant_id, uuid4(), "image/png")
    backend.store.write(leftover, b"again", "image/png")
    assert sweepers.run_once(backend).objects_deleted == 0
    assert sweepers.run_once(backend, now=utcnow() + timedelta(days=2)).objects_deleted == 1
    assert backend.store.head(leftover) is None
