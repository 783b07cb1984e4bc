"""The server: everything wired together on one screen."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from scripts.comfyui_stand_in import image_nodes, text_nodes, trial_nodes, video_nodes
from scripts.comfyui_stand_in.about_routes import AboutRoutes, features
from scripts.comfyui_stand_in.cache import Cache
from scripts.comfyui_stand_in.executor import Executor
from scripts.comfyui_stand_in.fault_routes import FaultRoutes
from scripts.comfyui_stand_in.faults import Faults
from scripts.comfyui_stand_in.file_routes import FileRoutes
from scripts.comfyui_stand_in.folders import Folders
from scripts.comfyui_stand_in.prompt_queue import PromptQueue
from scripts.comfyui_stand_in.prompt_routes import PromptRoutes
from scripts.comfyui_stand_in.prompt_run import Surroundings
from scripts.comfyui_stand_in.sockets import Sockets

NODES = (image_nodes, text_nodes, trial_nodes, video_nodes)  # imported for the classes they add

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, kw_only=True)
class Server:
    app: web.Application
    sockets: Sockets
    executor: Executor


def build(folder: Path, *, max_upload_bytes: int) -> Server:
    folders, faults, told_features = Folders(folder), Faults(), features(max_upload_bytes)
    sockets = Sockets(told_features)
    queue = PromptQueue(sockets.send_status)
    around = Surroundings(folders=folders, sockets=sockets, faults=faults, cache=Cache(folders))
    executor = Executor(queue, around)
    prompts = PromptRoutes(queue, executor)
    sockets.queue_status = prompts.status
    both_names = [
        web.get("/ws", sockets.serve),
        *prompts.table(),
        *FileRoutes(folders).table(),
        *AboutRoutes(folders, told_features).table(),
    ]
    app = web.Application(client_max_size=max_upload_bytes, middlewares=[same_origin])
    app.add_routes(both_names)
    app.add_routes([web.route(one.method, f"/api{one.path}", one.handler) for one in both_names])
    app.add_routes(prompts.jobs_table())
    app.add_routes(FaultRoutes(faults, sockets, prompts.posted).table())
    return Server(app=app, sockets=sockets, executor=executor)


async def run(server: Server, *, host: str, port: int) -> None:
    """Serve until a signal. There is no drain: what runs and waits is lost, like everything."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, os._exit, 0)
    runner = web.AppRunner(server.app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    listening: Any = runner.addresses[0]
    publishing = asyncio.ensure_future(server.sockets.publish())
    await asyncio.sleep(0)  # from here on messages have a loop to go to
    server.executor.start()
    print(f"ComfyUI stand-in on http://{host}:{listening[1]}", flush=True)
    await publishing


@web.middleware
async def same_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse other sites' pages, when we are spoken to by a loopback name."""
    if _is_foreign(request.headers.get("Host", ""), request.headers.get("Origin", "")):
        return web.Response(status=403)
    if request.method == "OPTIONS":
        return web.Response()
    return await handler(request)


def _is_foreign(host: str, origin: str) -> bool:
    asked, sent = urlsplit(f"//{host.lower()}"), urlsplit(origin.lower())
    if not asked.hostname or not sent.hostname or not _is_loopback(asked.hostname):
        return False
    if asked.port is None or sent.port is None:  # some browsers leave it out
        return asked.hostname != sent.hostname
    return asked.netloc != sent.netloc


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
