"""Uploaded images and videos, and what became of them."""

from typing import Any
from uuid import UUID

from marshmallow import Schema, fields, validate
from sqlalchemy import select
from sqlalchemy.orm import Session

from models import jobs, videos
from models.jobs import Job
from models.videos import Video, VideoStatus
from tasks import media_intake, queue_view, sweepers
from tasks.steps import each
from webapp.auth import let_users_in
from webapp.context import backend, principal
from webapp.openapi import ApiBlueprint
from webapp.pages import PageQuery, page, page_of
from webapp.problems import about
from webapp.shapes import OutputSchema, download_url, iso, output_shape

blueprint = let_users_in(
    ApiBlueprint("videos", __name__, url_prefix="/api/videos", description=__doc__)
)


class NewVideoSchema(Schema):
    original_file_id = fields.UUID(required=True)
    title = fields.String(
        load_default=None, validate=validate.Length(1, 200), metadata={"example": "My cat"}
    )


class VideoSchema(Schema):
    id = fields.UUID(required=True)
    title = fields.String(required=True)
    status = fields.String(required=True, validate=validate.OneOf([*VideoStatus]))
    kind = fields.String(required=True, validate=validate.OneOf(["image", "video"]))
    original_file_url = fields.String(required=True, allow_none=True)
    processed_file_url = fields.String(required=True, allow_none=True)
    processed_files = fields.List(fields.Nested(OutputSchema), required=True)
    progress = fields.Float(required=True, metadata={"minimum": 0, "maximum": 1})
    queue_position = fields.Integer(required=True, allow_none=True)
    eta_seconds = fields.Float(required=True, allow_none=True)
    error = fields.String(required=True, allow_none=True)
    job_id = fields.UUID(required=True, allow_none=True)
    created_at = fields.String(required=True)
    expires_at = fields.String(required=True, allow_none=True)


def shapes(session: Session, found: list[Video]) -> list[dict[str, Any]]:
    newest = jobs.newest_of_videos(session, [video.id for video in found])
    places = queue_view.places(backend(), list(newest.values()))
    return [
        _shape(video, newest.get(video.id), places.get(newest[video.id].id))
        if video.id in newest
        else _shape(video, None, None)
        for video in found
    ]


def _shape(video: Video, job: Job | None, place: queue_view.Place | None) -> dict[str, Any]:
    made = [output_shape(o.file) for o in job.outputs if not o.file.deleted_at] if job else []
    place = place or queue_view.NOWHERE
    expired = video.status == VideoStatus.EXPIRED
    return {
        "id": video.id,
        "title": video.title,
        "status": video.status,
        "kind": video.kind,
        "original_file_url": None if expired else download_url(video.original_file),
        "processed_file_url": made[0]["url"] if made else None,
        "processed_files": made,
        "progress": 1.0 if video.status == VideoStatus.COMPLETED else place.progress,
        "queue_position": place.position,
        "eta_seconds": place.eta_seconds,
        "error": video.error,
        "job_id": job.id if job else None,
        "created_at": iso(video.created_at),
        "expires_at": iso(video.expires_at),
    }


@blueprint.post("")
@blueprint.arguments(NewVideoSchema)
@blueprint.response(201, VideoSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def create(new: dict[str, Any]) -> dict[str, Any]:
    """Make a video (or image) of an uploaded file, once it has been checked"""
    who = principal()
    with about("original_file_id"):
        video = media_intake.make_video(
            backend(),
            tenant_id=who.tenant_id,
            user_id=who.user_id,
            file_id=new["original_file_id"],
            title=new["title"],
        )
    with backend().databases.tenant(who.tenant_id) as session:
        return shapes(session, [video])[0]


@blueprint.get("")
@blueprint.arguments(PageQuery, location="query")
@blueprint.response(200, page_of(VideoSchema))
def list_videos(query: dict[str, Any]) -> dict[str, Any]:
    """Your videos, newest first"""
    wanted = select(Video).where(Video.user_id == principal().user_id, Video.deleted_at.is_(None))
    with backend().databases.tenant(principal().tenant_id) as session:
        found, cursor = page(
            session, wanted, newest=(Video.created_at, Video.id), scope="videos", **query
        )
        return {"items": shapes(session, list(found)), "next_cursor": cursor}


@blueprint.get("/<uuid:video_id>")
@blueprint.response(200, VideoSchema)
@blueprint.alt_response(404, "NOT_FOUND")
def show(video_id: UUID) -> dict[str, Any]:
    """One video"""
    with backend().databases.tenant(principal().tenant_id) as session:
        video = videos.get(session, video_id, user_id=principal().user_id)
        return shapes(session, [video])[0]


@blueprint.delete("/<uuid:video_id>")
@blueprint.response(204)
@blueprint.alt_response(404, "NOT_FOUND")
@blueprint.alt_response(409, "CONFLICT")
def delete(video_id: UUID) -> None:
    """Delete a video with its files"""
    who = principal()
    with backend().databases.tenant(who.tenant_id) as session:
        condemned = jobs.remove_video(session, video_id, user_id=who.user_id)
    # What this can't delete now, the sweeper will.
    each(condemned, lambda file: sweepers.purge(backend(), file))
