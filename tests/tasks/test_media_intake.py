"""From an upload to a file we trust."""

import io
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from PIL import Image

from models import files, object_paths
from models.errors import UploadMissing
from models.files import File, FileStatus
from tasks import media_intake
from tasks.backend import Backend
from tests.fixtures import Person, make_person


def picture() -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (32, 32), "teal").save(made, "PNG")
    return made.getvalue()


def upload(backend: Backend, person: Person, data: bytes) -> UUID:
    file_id = uuid4()
    key = object_paths.upload_key(person.tenant_id, file_id, "image/png")
    backend.store.write(key, data, "image/png")
    with backend.databases.tenant(person.tenant_id) as session:
        files.announce(
            session,
            user_id=person.user_id,
            filename="a.png",
            mime_type="image/png",
            size_bytes=len(data),
            file_id=file_id,
            object_key=key,
        )
    return file_id


def make(backend: Backend, person: Person, file_id: UUID) -> UUID:
    video = media_intake.make_video(
        backend,
        tenant_id=person.tenant_id,
        user_id=person.user_id,
        file_id=file_id,
        title=None,
    )
    return video.id


def test_an_accepted_upload_leaves_the_quarantine(backend: Backend) -> None:
    ada = make_person(backend)
    file_id = upload(backend, ada, picture())
    assert make(backend, ada, file_id) == make(backend, ada, file_id)
    with backend.databases.tenant(ada.tenant_id) as session:
        file = session.get_one(File, file_id)
    assert (file.status, file.kind, file.width) == (FileStatus.STORED, "image", 32)
    assert file.object_key == object_paths.input_key(ada.tenant_id, file_id, "image/png")
    assert backend.store.read(file.object_key) == picture()
    assert list(backend.store.stale("uploads/", file.created_at.replace(year=2999))) == []


def test_the_same_call_several_times_at_once_is_one_video(postgres: Backend) -> None:
    ada = make_person(postgres)
    file_id = upload(postgres, ada, picture())
    with ThreadPoolExecutor(4) as threads:
        made = set(threads.map(lambda _: make(postgres, ada, file_id), range(4)))
    assert len(made) == 1


def test_what_never_arrived_is_said_to_be_missing(backend: Backend) -> None:
    ada = make_person(backend)
    file_id = upload(backend, ada, picture())
    backend.store.delete(object_paths.upload_key(ada.tenant_id, file_id, "image/png"))
    with pytest.raises(UploadMissing):
        make(backend, ada, file_id)


INTAKE = """
import sys
from uuid import UUID
from models.settings import Settings
from tasks import media_intake
from tasks.backend import Backend

tenant_id, user_id, file_id = map(UUID, sys.argv[1:])
media_intake.make_video(
    Backend.open(Settings.from_env()),
    tenant_id=tenant_id, user_id=user_id, file_id=file_id, title=None,
)
"""


def test_a_process_that_is_killed_while_it_checks_leaves_no_copy(
    sqlite: Backend, tmp_path: Path
) -> None:
    ada, folder = make_person(sqlite), tmp_path / "temporary"
    folder.mkdir()
    ids = (ada.tenant_id, ada.user_id, upload(sqlite, ada, picture()))
    given = {
        f"COMFYFLEET_{one.name.upper()}": str(getattr(sqlite.settings, one.name))
        for one in fields(sqlite.settings)
    }
    with subprocess.Popen(
        [sys.executable, "-c", INTAKE, *map(str, ids)],
        env=os.environ | given | {"TMPDIR": str(folder)},
    ) as intake:
        decoders = Path(f"/proc/{intake.pid}/task/{intake.pid}/children")
        while not decoders.read_text() and intake.poll() is None:
            time.sleep(0.01)
        intake.kill()
    assert intake.returncode < 0  # the decoder had begun, and nothing had ended
    assert list(folder.iterdir()) == []
