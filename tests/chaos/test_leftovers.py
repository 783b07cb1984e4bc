"""A file that nobody knows of is found, whether an object, an upload or something temporary."""

import io
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from PIL import Image
from sqlalchemy import update

from models import files, object_paths
from models.base import utcnow
from models.files import File, Output
from tasks import media_intake, outcomes
from tasks.backend import Backend
from tests.chaos import leftovers
from tests.fixtures import MakePerson, Person
from tests.tasks import orders

RESULT_BYTES = b"a result"


@pytest.fixture
def ada(demo: Backend, person: MakePerson) -> Person:
    """Has sent a picture and has a result."""
    ada = person(tokens=100)
    file_id = announce(demo, ada)
    send(demo, ada, file_id)
    media_intake.make_video(
        demo, tenant_id=ada.tenant_id, user_id=ada.user_id, file_id=file_id, title=None
    )
    orders.order(demo, ada)
    dispatch = orders.lease_next(demo)
    assert dispatch is not None
    assert dispatch.lease_token is not None
    key = object_paths.output_key(
        ada.tenant_id, dispatch.tenant_job_id, "image/png", lease_token=dispatch.lease_token
    )
    demo.store.write(key, RESULT_BYTES, "image/png")
    made = Output(
        name="out.png",
        kind="image",
        mime_type="image/png",
        size_bytes=len(RESULT_BYTES),
        object_key=key,
        content_hash="0" * 64,
    )
    outcomes.complete(demo, orders.lease_of(dispatch), outputs=[made])
    return ada


def picture() -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (16, 16), "teal").save(made, "PNG")
    return made.getvalue()


def announce(backend: Backend, person: Person) -> UUID:
    file_id = uuid4()
    with backend.databases.tenant(person.tenant_id) as session:
        files.announce(
            session,
            user_id=person.user_id,
            filename="a.png",
            mime_type="image/png",
            size_bytes=len(picture()),
            file_id=file_id,
            object_key=object_paths.upload_key(person.tenant_id, file_id, "image/png"),
        )
    return file_id


def send(backend: Backend, person: Person, file_id: UUID) -> str:
    key = object_paths.upload_key(person.tenant_id, file_id, "image/png")
    backend.store.write(key, picture(), "image/png")
    return key


def objects(tmp_path: Path) -> Path:
    return tmp_path / "objects"


def said(backend: Backend, tmp_path: Path) -> list[str]:
    found = [
        *leftovers.about_objects(backend, objects(tmp_path)),
        *leftovers.about_uploads(backend),
    ]
    return [finding.sentence for finding in found]


def result_in(tmp_path: Path) -> Path:
    [path] = objects(tmp_path).glob("tenants/*/ai-jobs/*/output-*.png")
    return path


def test_where_rows_and_objects_agree_nothing_is_said(
    demo: Backend, ada: Person, tmp_path: Path
) -> None:
    assert result_in(tmp_path).read_bytes() == RESULT_BYTES
    assert said(demo, tmp_path) == []


def test_an_object_without_a_row_is_found_with_its_job(
    demo: Backend, ada: Person, tmp_path: Path
) -> None:
    left = result_in(tmp_path).with_name(f"output-{uuid4()}.png")
    left.write_bytes(b"of a lease that was lost")
    [finding] = leftovers.about_objects(demo, objects(tmp_path))
    assert finding.sentence == (f"The object {left.relative_to(objects(tmp_path))} is in no row.")
    assert finding.job_id == UUID(left.parent.name)


def test_a_result_that_is_missing_or_cut_off(demo: Backend, ada: Person, tmp_path: Path) -> None:
    path = result_in(tmp_path)
    path.write_bytes(RESULT_BYTES[:3])
    assert said(demo, tmp_path) == [
        f"The object {path.relative_to(objects(tmp_path))} has 3 bytes, not {len(RESULT_BYTES)}."
    ]
    path.unlink()
    assert said(demo, tmp_path) == [f"The object {path.relative_to(objects(tmp_path))} is missing."]


def test_what_lies_in_quarantine_and_what_was_never_finished(
    demo: Backend, ada: Person, tmp_path: Path
) -> None:
    file_id = announce(demo, ada)
    key = send(demo, ada, file_id)
    (objects(tmp_path) / ".unfinished").mkdir(exist_ok=True)
    (objects(tmp_path) / ".unfinished/draft-1").touch()
    assert said(demo, tmp_path) == [
        "The object .unfinished/draft-1 is in no row.",
        f"The object {key} is in no row.",
        f"The upload {file_id} was never given up.",
    ]


def test_a_deleted_file_whose_object_is_still_there(
    demo: Backend, ada: Person, tmp_path: Path
) -> None:
    with demo.databases.pool("main") as session:
        deleted = update(File).where(File.filename == "a.png").values(deleted_at=utcnow())
        session.execute(deleted)
    of_object, of_row = said(demo, tmp_path)
    assert "is in no row" in of_object
    assert "was deleted, its object was not." in of_row


@pytest.mark.parametrize(
    "left",
    [
        "gpu-1/local-1/jobs/job-x/output-0.png",
        "gpu-2/local-2/cache/0123.part",
        "gpu-2/local-2/prompts-self_hosted.new",
        "comfyui-1/input/0123.png",
        "comfyui-1/output/job-1-1/out_00001_.png",
        "comfyui-3/temp/ComfyUI_temp_x_00001_.png",
        "tmp/upload",
    ],
)
def test_a_file_left_in_a_working_folder(tmp_path: Path, left: str) -> None:
    tidy = ["gpu-1/local-1/token", "gpu-1/local-1/cache/01/0123-9", "comfyui-1/comfyui.log"]
    for name in tidy:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(leftovers.about_folders(tmp_path)) == []
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).touch()
    assert [one.sentence.startswith(left[:11]) for one in leftovers.about_folders(tmp_path)] == [
        True
    ]


@pytest.mark.parametrize("notes", ["prompts-self_hosted.json", "leftovers-self_hosted.json"])
def test_notes_of_work_that_nobody_has_ended(tmp_path: Path, notes: str) -> None:
    path = tmp_path / "gpu-1/local-1" / notes
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    assert list(leftovers.about_folders(tmp_path)) == []
    path.write_text('["a prompt"]')
    [finding] = leftovers.about_folders(tmp_path)
    assert notes in finding.sentence
