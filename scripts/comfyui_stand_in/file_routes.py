"""The routes for files: upload and view."""

import hashlib
import mimetypes
import os
from io import BytesIO
from pathlib import Path

from aiohttp import web
from aiohttp.web_request import FileField
from PIL import Image

from scripts.comfyui_stand_in.folders import Folders, fingerprint

# A browser would run these; so they are served as something it only saves.
_ACTIVE = {
    "text/html",
    "text/html-sandboxed",
    "application/xhtml+xml",
    "text/javascript",
    "text/css",
}


class FileRoutes:
    def __init__(self, folders: Folders) -> None:
        self.folders = folders

    def table(self) -> list[web.RouteDef]:
        return [web.post("/upload/image", self.upload), web.get("/view", self.view)]

    async def upload(self, request: web.Request) -> web.Response:
        """Any kind of file. The name in the answer may differ from the one that was sent."""
        form = await request.post()
        file, kind = form.get("image"), str(form.get("type", "input"))
        folder = self.folders.of(kind)
        if folder is None:
            raise ValueError(f"There is no folder {kind}.")
        if not isinstance(file, FileField) or not file.filename:
            return web.Response(status=400)
        subfolder = str(form.get("subfolder", ""))
        target = Path(os.path.abspath(folder / subfolder / file.filename))
        if not target.is_relative_to(folder):
            return web.Response(status=400)
        Path(os.path.normpath(folder / subfolder)).mkdir(parents=True, exist_ok=True)
        content = file.file.read()
        if form.get("overwrite") not in ("true", "1"):
            target = _free_or_equal(target, content)
        target.write_bytes(content)
        return web.json_response({"name": target.name, "subfolder": subfolder, "type": kind})

    async def view(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        if "filename" not in query:
            return web.Response(status=404)
        name, folder = self.folders.annotated(query["filename"])
        folder = folder or self.folders.of(query.get("type", "output"))
        if not name or name.startswith("/") or ".." in name or folder is None:
            return web.Response(status=400)
        place = Path(os.path.abspath(folder / query.get("subfolder", "")))
        if not place.is_relative_to(folder):
            return web.Response(status=403)
        path = place / os.path.basename(name)
        if not path.is_file():
            return web.Response(status=404)
        if "preview" in query:
            return _preview(path, query["preview"])
        return web.FileResponse(
            path,
            headers={
                "Content-Disposition": f'filename="{path.name}"',
                "Content-Type": _content_type(path),
            },
        )


def _free_or_equal(target: Path, content: bytes) -> Path:
    """The name itself, or "name (1).png" and so on, unless the same bytes are there already."""
    digest = hashlib.sha256(content).hexdigest()
    chosen, number = target, 0
    while chosen.exists() and fingerprint(chosen) != digest:
        number += 1
        chosen = target.with_name(f"{target.stem} ({number}){target.suffix}")
    return chosen


def _content_type(path: Path) -> str:
    guessed = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return "application/octet-stream" if guessed in _ACTIVE else guessed


def _preview(path: Path, wanted: str) -> web.Response:
    kind, *more = wanted.split(";")
    kind = kind if kind in ("webp", "jpeg") else "webp"
    quality = int(more[-1]) if more and more[-1].isdigit() else 90
    with Image.open(path) as image, BytesIO() as file:
        image.convert("RGB").save(file, format=kind, quality=quality)
        return web.Response(
            body=file.getvalue(),
            content_type=f"image/{kind}",
            headers={"Content-Disposition": f'filename="{path.name}"'},
        )
