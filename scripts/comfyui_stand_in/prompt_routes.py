"""The routes for prompts: post, queue, history, interrupt, free, jobs.

Requests are read as carelessly as the real server reads them: what is not JSON, or not of the
expected kind, ends in a 500.
"""

import json
import time
import uuid
from collections import deque
from typing import Any

from aiohttp import web

from scripts.comfyui_stand_in import jobs
from scripts.comfyui_stand_in.executor import Executor
from scripts.comfyui_stand_in.prompt_queue import PromptQueue
from scripts.comfyui_stand_in.validation import problem, validate

_SENSITIVE = ("auth_token_comfy_org", "api_key_comfy_org")
_MOST_REMEMBERED = 10_000


class PromptRoutes:
    def __init__(self, queue: PromptQueue, executor: Executor) -> None:
        self.queue = queue
        self.executor = executor
        self.faults = executor.around.faults
        self.next_number = 0
        self.posted: deque[dict[str, Any]] = deque(maxlen=_MOST_REMEMBERED)

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/prompt", self.get_prompt),
            web.post("/prompt", self.post_prompt),
            web.get("/queue", self.get_queue),
            web.post("/queue", self.post_queue),
            web.get("/history", self.get_history),
            web.get("/history/{prompt_id}", self.get_history_entry),
            web.post("/history", self.post_history),
            web.post("/interrupt", self.interrupt),
            web.post("/free", self.free),
        ]

    def jobs_table(self) -> list[web.RouteDef]:
        """These have only the name that begins with /api."""
        return [
            web.get("/api/jobs", self.get_jobs),
            web.get("/api/jobs/{prompt_id}", self.get_job),
        ]

    def status(self) -> dict[str, Any]:
        return {"exec_info": {"queue_remaining": self.queue.remaining()}}

    async def get_prompt(self, _: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def post_prompt(self, request: web.Request) -> web.Response:
        received_at = time.time()
        body = await request.json()
        answer = self._accept(body)
        self._remember(body, answer, received_at)
        return answer

    def _accept(self, body: Any) -> web.Response:
        if self.faults.fails_prompt():
            return web.Response(status=self.faults.prompt_status)
        number = self._number(body)
        if "prompt" not in body:
            missing = problem("no_prompt", "No prompt provided", "No prompt provided")
            return web.json_response({"error": missing, "node_errors": {}}, status=400)
        prompt, prompt_id = body["prompt"], str(body.get("prompt_id", uuid.uuid4()))
        verdict = validate(prompt, self.executor.around.folders)
        extra_data = body.get("extra_data", {})
        if "client_id" in body:
            extra_data["client_id"] = body["client_id"]
        if verdict.error:
            refusal = {"error": verdict.error, "node_errors": verdict.node_errors}
            return web.json_response(refusal, status=400)
        for name in _SENSITIVE:
            if name in extra_data:
                extra_data.pop(name)
        extra_data["create_time"] = int(time.time() * 1000)
        self.queue.put((number, prompt_id, prompt, extra_data, verdict.outputs))
        accepted = {"prompt_id": prompt_id, "number": number, "node_errors": verdict.node_errors}
        return web.json_response(accepted)

    def _number(self, body: Any) -> float:
        if "number" in body:
            return float(body["number"])
        is_front = isinstance(body, dict) and body.get("front")
        number = -self.next_number if is_front else self.next_number
        self.next_number += 1
        return number

    def _remember(self, body: Any, answer: web.Response, received_at: float) -> None:
        told = json.loads(answer.text or "{}") if answer.status == 200 else {}
        asked = body if isinstance(body, dict) else {}
        self.posted.append(
            {
                "prompt_id": told.get("prompt_id", asked.get("prompt_id")),
                "client_id": asked.get("client_id"),
                "received_at": received_at,
                "status": answer.status,
                "prompt": asked.get("prompt"),
            }
        )

    async def get_queue(self, _: web.Request) -> web.Response:
        running, pending = self.queue.snapshot()
        return web.json_response({"queue_running": running, "queue_pending": pending})

    async def post_queue(self, request: web.Request) -> web.Response:
        order = await request.json()
        if order.get("clear"):
            self.queue.clear()
        for prompt_id in order.get("delete", ()):
            self.queue.delete(prompt_id)
        return web.Response()

    async def get_history(self, request: web.Request) -> web.Response:
        most = request.query.get("max_items")
        entries = self.queue.recent_history(
            most=None if most is None else int(most), offset=int(request.query.get("offset", -1))
        )
        return web.json_response(entries)

    async def get_history_entry(self, request: web.Request) -> web.Response:
        """The answer is {} for what waits, what runs and what never was."""
        prompt_id = request.match_info["prompt_id"]
        entry = self.queue.history.get(prompt_id)
        return web.json_response({prompt_id: entry} if entry else {})

    async def post_history(self, request: web.Request) -> web.Response:
        order = await request.json()
        if order.get("clear"):
            self.queue.history.clear()
        for prompt_id in order.get("delete", ()):
            self.queue.history.pop(prompt_id, None)
        return web.Response()

    async def interrupt(self, request: web.Request) -> web.Response:
        """Always 200, whatever comes of it."""
        try:
            order = await request.json()
        except json.JSONDecodeError:
            order = {}
        prompt_id = order.get("prompt_id")
        if self.faults.loses_interrupt():
            return web.Response()
        running, _ = self.queue.snapshot()
        if not prompt_id or any(item[1] == prompt_id for item in running):
            self.executor.interrupt()
        return web.Response()

    async def free(self, request: web.Request) -> web.Response:
        order = await request.json()
        if order.get("free_memory"):
            self.executor.shall_forget.set()
        return web.Response()

    async def get_jobs(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(jobs.page(self.queue, dict(request.query)))
        except jobs.BadQuery as refusal:
            return web.json_response({"error": str(refusal)}, status=400)

    async def get_job(self, request: web.Request) -> web.Response:
        job = jobs.one(self.queue, request.match_info["prompt_id"])
        if job is None:
            return web.json_response({"error": "Job not found"}, status=404)
        return web.json_response(job)
