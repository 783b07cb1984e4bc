"""Scenes for the recordings about files, and about who may ask."""

import asyncio
from typing import Any

import aiohttp
import pytest
import requests
from PIL import Image
from websocket import WebSocketBadStatusException

from tests.stand_ins.comfyui_prompt_scenes import Scene
from tests.stand_ins.comfyui_replay import PATIENCE_SECONDS, Replay

#: Recorded, but no client of ours calls them: the server's log and folders, its user settings.
NOT_PROVIDED = ("/internal/", "/userdata", "/users", "/settings")
LIMITS = ("--max-upload-size", "1")  # what the server of security_origin_limits was started with


def upload_image(replay: Replay, recorded: Any) -> None:
    (replay.server.folder / "input" / "in.png").unlink()
    for exchange in recorded["exchanges"]:
        body = exchange["request_body"]
        if isinstance(body, dict) and "multipart" in body:
            replay.check(exchange, files=_form(body["multipart"], exchange["note"]))
        elif isinstance(body, str):
            replay.check(exchange, data={"no": "file"})
        else:
            replay.check(exchange)


def _form(fields: dict[str, str], note: str) -> dict[str, Any]:
    """Other notes, other bytes; a note that says they are the same has those of the first."""
    content = b"plain" if "same bytes" in note else note.encode()
    if "empty file" in note:
        content = b""
    if note.startswith("--max-upload-size"):
        content = bytes((1 << 20) - 1000 if "near" in note else 2 << 20)
    form: dict[str, Any] = {}
    for name, value in fields.items():
        if value.startswith("<file filename="):
            file_name = value.removeprefix("<file filename='").split("' content_type=")[0]
            form[name] = (file_name, content)  # a backslash is doubled in the header as well
        else:
            form[name] = (None, value)
    return form


def upload_filename_by_client(replay: Replay, recorded: Any) -> None:
    """httpx is none of our packages, and sends the same bytes as requests."""
    for exchange in recorded:
        name, subfolder = exchange["sent_name"], exchange["answer"]["subfolder"]
        if exchange["client"].startswith("aiohttp"):
            quote = "True" in exchange["client"]
            status, answer = asyncio.run(_aiohttp_upload(replay, name, subfolder, quote=quote))
        else:
            status, answer = _requests_upload(replay, name, subfolder)
        assert (status, answer) == (exchange["status"], exchange["answer"])


def _requests_upload(replay: Replay, name: str, subfolder: str) -> tuple[int, Any]:
    form = {"image": (name, b"x"), "subfolder": (None, subfolder)}
    answer = requests.post(replay.url("/upload/image"), files=form, timeout=PATIENCE_SECONDS)
    return answer.status_code, answer.json()


async def _aiohttp_upload(
    replay: Replay, name: str, subfolder: str, *, quote: bool
) -> tuple[int, Any]:
    form = aiohttp.FormData(quote_fields=quote)
    form.add_field("image", b"x", filename=name)
    form.add_field("subfolder", subfolder)
    async with (
        aiohttp.ClientSession() as session,
        session.post(replay.url("/upload/image"), data=form) as answer,
    ):
        return answer.status, await answer.json()


def view(replay: Replay, recorded: Any) -> None:
    output = replay.server.folder / "output"
    for name in ("tiny_00001_.png", "sub/inv_00001_.png", "папка/выход ö_00001_.png"):
        (output / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (64, 64), (1, 2, 3)).save(output / name)
    (output / "video").mkdir()
    (output / "video" / "inv_00001_.mp4").write_bytes(bytes(3307))
    (replay.server.folder / "input" / "evil.txt").write_text("this is not an image " * 20)
    for exchange in recorded["exchanges"]:
        replay.check(exchange)
        if "Content-Range" in exchange["response_headers"]:
            answer = replay.send(exchange)
            for name in ("Content-Range", "Content-Length"):
                assert answer.headers[name] == exchange["response_headers"][name]


def security_origin_limits(replay: Replay, recorded: Any) -> None:
    replay.ids["127.0.0.1:8199"] = f"127.0.0.1:{replay.server.port}"
    for name in ("p.html", "p.svg"):
        (replay.server.folder / "input" / name).write_text("<svg/>")
    for exchange in recorded["exchanges"]:
        if exchange["note"].startswith("ws Origin"):
            _check_socket_origin(replay, exchange["note"])
        elif not exchange["path"].startswith(NOT_PROVIDED):
            _check_limit(replay, exchange)


def _check_limit(replay: Replay, exchange: dict[str, Any]) -> None:
    body, headers = exchange["request_body"], exchange["request_headers"] or {}
    exchange["request_headers"] = {name: replay.ours(text) for name, text in headers.items()}
    if exchange["path"] == "/system_stats" and exchange["status"] == 200:
        assert replay.send(exchange).json()["system"]["comfyui_version"] == "0.7.0"
    elif isinstance(body, dict) and "multipart" in body:
        replay.check(exchange, files=_form(body["multipart"], exchange["note"]))
    elif exchange["status"] == 413:
        replay.check(exchange, json={**body, "extra_data": {"x": "y" * 1_200_000}})
    else:
        replay.check(exchange)


def _check_socket_origin(replay: Replay, note: str) -> None:
    origin = replay.ours(note.removeprefix("ws Origin ").split(": ")[0])
    options = {} if origin == "None" else {"origin": origin}
    if note.endswith(": accepted"):
        replay.socket("/ws?clientId=sec", **options)
        return
    with pytest.raises(WebSocketBadStatusException) as refused:
        replay.socket("/ws?clientId=sec", **options)
    assert refused.value.status_code == 403


FILE_SCENES: dict[str, Scene] = {
    "security_origin_limits": security_origin_limits,
    "upload_filename_by_client": upload_filename_by_client,
    "upload_image": upload_image,
    "view": view,
}
