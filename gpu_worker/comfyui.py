"""A ComfyUI over HTTP. Every answer is awaited for a bounded time.

What goes wrong is told apart by whose fault it is:

    Unwell           ComfyUI is in trouble: it answered 5xx, or not like a ComfyUI
      Gone           nobody listens, or the connection broke
      NoAnswer       it listens and is silent
    Refused          ComfyUI is well and says no (4xx)

ComfyUI has no locks and no users: whoever reaches it can read and stop everything. So every
order here names its prompt, and nothing is ever asked of "whatever runs".
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from gpu_worker.multipart import FileForm
from gpu_worker.provider import Unwell
from gpu_worker.wire import Answer, HTTPException, Wire

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
# ComfyUI writes an upload to disk, or reads a result from it, before the first byte comes.
TRANSFER_SECONDS = 30.0
CHUNK_BYTES = 1 << 20
WITHOUT_METADATA = "--disable-metadata"


class Gone(Unwell):
    """Nobody listens there, or the connection broke."""


class NoAnswer(Unwell):
    """It listens, and says nothing."""


class Refused(Exception):
    """ComfyUI understood and said no."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"ComfyUI answered {status}: {body[:200]}")
        self.status, self.body = status, body


@dataclass(frozen=True)
class Accepted:
    prompt_id: str
    node_errors: dict[str, Any]  # not empty: ComfyUI left a part of the graph out


@dataclass(frozen=True)
class Queue:
    """Ids of prompts."""

    running: list[str]
    pending: list[str]


class ComfyUI:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.wire = Wire(self.url, connect_seconds=CONNECT_SECONDS)
        self.session = requests.Session()
        self.session.trust_env = False  # a proxy of the machine is not for the server beside us
        adapter = HTTPAdapter(pool_connections=1, pool_maxsize=4)
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, adapter)

    def close(self) -> None:
        self.session.close()
        self.wire.close()

    def stats(self, *, seconds: float) -> dict[str, Any]:
        return self._object("GET", "/system_stats", seconds=seconds)

    def submit(self, graph: dict[str, Any], *, prompt_id: str, client_id: str) -> Accepted:
        # Without a client id a run that is answered from the cache has no outputs.
        body = {"prompt": graph, "prompt_id": prompt_id, "client_id": client_id}
        answer = self._object("POST", "/prompt", body=body)
        given = answer.get("prompt_id")
        if not isinstance(given, str):
            raise Unwell("ComfyUI took a prompt and did not name it.")
        return Accepted(given, answer.get("node_errors") or {})

    def history(self, prompt_id: str, *, seconds: float = ANSWER_SECONDS) -> dict[str, Any] | None:
        """The entry of a prompt that has ended. None: it waits, runs, or is not known."""
        answer = self._object("GET", f"/history/{prompt_id}", seconds=seconds)
        entry = answer.get(prompt_id)
        return entry if isinstance(entry, dict) else None

    def queue(self, *, seconds: float = ANSWER_SECONDS) -> Queue:
        answer = self._object("GET", "/queue", seconds=seconds)
        return Queue(_ids(answer.get("queue_running")), _ids(answer.get("queue_pending")))

    def withdraw(self, prompt_id: str, *, seconds: float = ANSWER_SECONDS) -> None:
        """Ask it to leave the queue if it waits, and to end if it runs. May well be lost."""
        self._ask("POST", "/queue", body={"delete": [prompt_id]}, seconds=seconds)
        self._ask("POST", "/interrupt", body={"prompt_id": prompt_id}, seconds=seconds)

    def forget_cache(self) -> None:
        """Have the next prompt run anew, whatever ran before."""
        self._ask("POST", "/free", body={"free_memory": True})

    def upload(self, path: Path, *, name: str, check: Callable[[], None]) -> str:
        """The name under which a graph finds the file. It need not be the one asked for."""
        form = FileForm(path, field="image", name=name, check=check)
        sent = self._send(
            "POST",
            "/upload/image",
            data=form,
            headers={"Content-Type": form.content_type},
            seconds=TRANSFER_SECONDS,
        )
        answer = _parsed(sent.content)
        given, folder = answer.get("name"), answer.get("subfolder")
        if not isinstance(given, str):
            raise Unwell("ComfyUI took a file and did not name it.")
        return f"{folder}/{given}" if folder else given

    def download(
        self, *, filename: str, subfolder: str, to: Path, check: Callable[[], None]
    ) -> None:
        response = self._send(
            "GET",
            "/view",
            params={"filename": filename, "subfolder": subfolder, "type": "output"},
            stream=True,
            seconds=TRANSFER_SECONDS,
        )
        with response, to.open("wb") as file:
            try:
                for chunk in response.iter_content(CHUNK_BYTES):
                    check()
                    file.write(chunk)
            except requests.RequestException as error:
                raise Gone(
                    "ComfyUI broke off in the middle of a file.", trace=str(error)
                ) from error

    def _object(
        self, method: str, path: str, *, body: Any = None, seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        return _parsed(self._ask(method, path, body=body, seconds=seconds).body)

    def _ask(
        self, method: str, path: str, *, body: Any = None, seconds: float = ANSWER_SECONDS
    ) -> Answer:
        try:
            answer = self._asked(method, path, body=body, seconds=seconds)
        except TimeoutError as error:
            raise NoAnswer(f"ComfyUI did not answer {method} {path}.", trace=str(error)) from error
        except (HTTPException, OSError) as error:
            raise Gone("ComfyUI is not reachable.", trace=str(error)) from error
        _require_good(f"{method} {path}", answer.status, answer.text)
        return answer

    def _asked(self, method: str, path: str, *, body: Any, seconds: float) -> Answer:
        try:
            return self.wire.ask(method, path, body=body, seconds=seconds)
        except TimeoutError:
            raise
        except (HTTPException, OSError):
            # A connection kept since before ComfyUI restarted breaks once. Reading twice is
            # harmless; a prompt sent twice would run twice.
            if method != "GET":
                raise
            return self.wire.ask(method, path, body=body, seconds=seconds)

    def _send(self, method: str, path: str, *, seconds: float, **given: Any) -> requests.Response:
        """For files, which are too large to be held in memory."""
        timeout = (min(CONNECT_SECONDS, seconds), seconds)
        try:
            response = self.session.request(method, self.url + path, timeout=timeout, **given)
        except requests.Timeout as error:
            raise NoAnswer(f"ComfyUI did not answer {method} {path}.", trace=str(error)) from error
        except requests.RequestException as error:
            raise Gone("ComfyUI is not reachable.", trace=str(error)) from error
        _require_good(f"{method} {path}", response.status_code, response)
        return response


def writes_no_metadata(stats: dict[str, Any]) -> bool:
    """By the options it was started with. One that does not tell them is not suspected."""
    system = stats.get("system")
    argv = system.get("argv") if isinstance(system, dict) else None
    return not isinstance(argv, list) or WITHOUT_METADATA in argv


def _require_good(call: str, status: int, body: str | requests.Response) -> None:
    if status < 400:
        return
    told = body if isinstance(body, str) else body.text
    if status >= 500:
        raise Unwell(f"ComfyUI answered {status} to {call}.", trace=told)
    raise Refused(status, told)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError as error:
        raise Unwell("ComfyUI answered something that is no JSON.", trace=str(error)) from error
    if not isinstance(answer, dict):
        raise Unwell("ComfyUI answered something that is no JSON object.")
    return answer


def _ids(items: object) -> list[str]:
    """Of the queue's rows [number, prompt id, ...]."""
    rows = items if isinstance(items, list) else []
    return [str(row[1]) for row in rows if isinstance(row, list) and len(row) > 1]
