"""The routes that tell about the server: its version, what it can do, and its node classes."""

import os
import sys
from typing import Any

from aiohttp import web

from scripts.comfyui_stand_in.folders import Folders
from scripts.comfyui_stand_in.node_classes import CLASSES, described

VERSION = "0.7.0"  # the one that was recorded


def features(max_upload_bytes: int) -> dict[str, Any]:
    return {
        "supports_preview_metadata": True,
        "max_upload_size": max_upload_bytes,
        "extension": {"manager": {"supports_v4": True}},
    }


class AboutRoutes:
    def __init__(self, folders: Folders, told_features: dict[str, Any]) -> None:
        self.folders = folders
        self.features = told_features

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/system_stats", self.get_system_stats),
            web.get("/features", self.get_features),
            web.get("/object_info", self.get_object_info),
            web.get("/object_info/{name}", self.get_node_class),
        ]

    async def get_system_stats(self, _: web.Request) -> web.Response:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * page_bytes
        free = os.sysconf("SC_AVPHYS_PAGES") * page_bytes
        memory = {"vram_total": total, "vram_free": free}
        memory |= {"torch_vram_total": total, "torch_vram_free": free}
        system = {
            "os": sys.platform,
            "ram_total": total,
            "ram_free": free,
            "comfyui_version": VERSION,
            "required_frontend_version": "1.35.9",
            "installed_templates_version": "0.7.65",
            "required_templates_version": "0.7.65",
            "python_version": sys.version,
            "pytorch_version": "2.13.0+cpu",
            "embedded_python": False,
            # It writes no workflow into what it saves, which is what this option asks for.
            "argv": [*sys.argv, "--disable-metadata"],
        }
        device = {"name": "cpu", "type": "cpu", "index": None, **memory}
        return web.json_response({"system": system, "devices": [device]})

    async def get_features(self, _: web.Request) -> web.Response:
        return web.json_response(self.features)

    async def get_object_info(self, _: web.Request) -> web.Response:
        every = {name: described(found, self.folders) for name, found in CLASSES.items()}
        return web.json_response(every)

    async def get_node_class(self, request: web.Request) -> web.Response:
        found = CLASSES.get(request.match_info["name"])
        return web.json_response({found.name: described(found, self.folders)} if found else {})
