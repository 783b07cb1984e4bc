"""The routes a real ComfyUI does not have: to provoke rare events, and to look back."""

from collections import deque
from typing import Any

from aiohttp import web

from scripts.comfyui_stand_in.faults import Faults
from scripts.comfyui_stand_in.sockets import Sockets


class FaultRoutes:
    def __init__(self, faults: Faults, sockets: Sockets, posted: deque[dict[str, Any]]) -> None:
        self.faults = faults
        self.sockets = sockets
        self.posted = posted

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/stand-in/faults", self.get_faults),
            web.post("/stand-in/faults", self.set_faults),
            web.get("/stand-in/prompts", self.get_prompts),
        ]

    async def get_faults(self, _: web.Request) -> web.Response:
        return web.json_response({**self.faults.told(), "refuse_sockets": self.sockets.refuses})

    async def set_faults(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        drops, refuses = wanted.pop("close_sockets", False), wanted.pop("refuse_sockets", None)
        try:
            self.faults.set(wanted)
        except ValueError as refusal:
            return web.json_response({"error": str(refusal)}, status=400)
        if refuses is not None:
            self.sockets.refuses = bool(refuses)
        if drops:
            self.sockets.drop_all()
        return web.Response()

    async def get_prompts(self, _: web.Request) -> web.Response:
        """What was posted so far, oldest first, with the time it came."""
        return web.json_response(list(self.posted))
