"""Sends what was recorded against a real ComfyUI to our stand-in, and makes answers comparable.

What can't be equal is replaced in both: ids, times, queue numbers, counters in file names,
sizes of images, tracebacks, printed tensors. Lists that stand for sets are sorted. Everything
else has to be the same.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from websocket import WebSocket, WebSocketTimeoutException, create_connection

from scripts.comfyui_stand_in.process import ComfyUI

RECORDINGS = Path(__file__).parents[1] / "recordings" / "comfyui"
PATIENCE_SECONDS = 20
TIMES = {"timestamp", "create_time", "execution_start_time", "execution_end_time"}
SETS = {"executed", "current_outputs", "dependent_outputs"}
HEADERS = ("Content-Type", "Content-Disposition", "Accept-Ranges")

TINY = {
    "1": {
        "class_type": "EmptyImage",
        "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 7},
    },
    "2": {
        "class_type": "SaveImage",
        "inputs": {"images": ["1", 0], "filename_prefix": "tiny"},
    },
}


def recording(name: str) -> Any:
    return json.loads((RECORDINGS / f"{name}.json").read_text())


def workflow(name: str) -> Any:
    return recording(f"workflows/{name}")


def comparable(value: Any, key: str = "") -> Any:
    if key in TIMES:
        return type(value).__name__
    if key in ("number", "priority"):
        return _number(value)
    if key == "traceback":
        return [bool(value)]
    if isinstance(value, dict):
        return {name: comparable(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return _comparable_list(value, key)
    return _comparable_text(value) if isinstance(value, str) else value


def _comparable_list(value: list[Any], key: str) -> list[Any]:
    if key == "prompt" and len(value) == 5:  # a queue item in the history
        value = [_number(value[0]), *value[1:4], sorted(value[4])]
    if key in ("queue_running", "queue_pending"):
        return [_comparable_list(item, "prompt") for item in value]
    items = [comparable(item) for item in value]
    return sorted(items) if key in SETS else items


def _comparable_text(text: str) -> str:
    if text.startswith("tensor("):
        return "tensor"
    text = re.sub(r"_\d{5}_", "_#####_", text)
    return re.sub(r"^<\d+ bytes", "<some bytes", text)


def _number(value: float) -> str:
    """Of a queue number only what a client could rely on: its kind and its sign."""
    return f"{type(value).__name__} {'-' if value < 0 else '+'}"


class Replay:
    def __init__(self, server: ComfyUI) -> None:
        self.server = server
        self.ids: dict[str, str] = {}  # what was recorded: what we got instead
        self.sockets: list[WebSocket] = []

    def url(self, path: str) -> str:
        return self.server.url + self.ours(path)

    def ours(self, text: str) -> str:
        for recorded, actual in self.ids.items():
            text = text.replace(recorded, actual)
        return text

    def _theirs(self, text: str) -> str:
        for recorded, actual in self.ids.items():
            text = text.replace(actual, recorded)
        # The recording has one name for the server's folder and for the one above it.
        for folder in (self.server.folder, self.server.folder.parent):
            text = text.replace(str(folder), "/srv/comfyui")
        return text

    def as_recorded(self, value: Any) -> Any:
        """With the ids and the folder of the recording."""
        return json.loads(self._theirs(json.dumps(value)))

    def check(self, exchange: dict[str, Any], **sent: Any) -> None:
        """Send one recorded request, and compare what comes back with what came back."""
        answer = self.send(exchange, **sent)
        note = exchange.get("note")
        assert answer.status_code == exchange["status"], (note, answer.text)
        for name in HEADERS:
            wanted = exchange["response_headers"].get(name)
            given = answer.headers.get(name)
            if given is not None:
                given = given.encode("latin-1").decode()  # requests reads headers as Latin-1
            assert given == wanted, (note, name)
        assert self.body(answer, exchange) == comparable(exchange["response_body"]), note

    def send(self, exchange: dict[str, Any], **sent: Any) -> requests.Response:
        body = exchange["request_body"]
        if sent or body is None:
            pass
        elif isinstance(body, str):
            sent = {"data": body}
        else:
            sent = {"json": json.loads(self.ours(json.dumps(body)))}
        return requests.request(
            exchange["method"],
            self.url(exchange["path"]),
            headers=exchange["request_headers"],
            timeout=PATIENCE_SECONDS,
            **sent,
        )

    def body(self, answer: requests.Response, exchange: dict[str, Any]) -> Any:
        kind = answer.headers.get("Content-Type", "")
        recorded = exchange["response_body"]
        if isinstance(recorded, str) and recorded.startswith("<"):
            return f"<some bytes {kind}>"
        if not kind.startswith("application/json"):
            return _comparable_text(answer.text)
        if isinstance(recorded, dict) and "prompt_id" in recorded:
            self.ids[recorded["prompt_id"]] = answer.json()["prompt_id"]
        return comparable(json.loads(self._theirs(answer.text)))

    def get(self, path: str) -> Any:
        return requests.get(self.url(path), timeout=PATIENCE_SECONDS).json()

    def status_of(self, path: str) -> int | None:
        """None when nobody listens."""
        try:
            return requests.get(self.url(path), timeout=PATIENCE_SECONDS).status_code
        except requests.ConnectionError:
            return None

    def post(self, prompt: Any, prompt_id: str, **more: Any) -> None:
        body = {"prompt": prompt, "prompt_id": prompt_id, **more}
        answer = requests.post(self.url("/prompt"), json=body, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text

    def faults(self, **wanted: Any) -> None:
        answer = requests.post(self.url("/stand-in/faults"), json=wanted, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text

    def order(self, path: str, body: Any) -> None:
        assert requests.post(self.url(path), json=body, timeout=PATIENCE_SECONDS).status_code == 200

    def until_running(self, prompt_id: str) -> None:
        eventually(lambda: self.get(f"/api/jobs/{prompt_id}").get("status") == "in_progress")

    def until_held(self, node_id: str) -> None:
        eventually(lambda: self.get("/stand-in/faults")["held_at_node"] == node_id)

    def until_idle(self) -> None:
        eventually(lambda: self.get("/prompt")["exec_info"]["queue_remaining"] == 0)

    def run(self, prompt: Any, prompt_id: str, **more: Any) -> Any:
        """Post a prompt and wait for its entry in the history."""
        self.post(prompt, prompt_id, **more)
        eventually(lambda: self.get(f"/history/{prompt_id}"))
        return self.get(f"/history/{prompt_id}")[prompt_id]

    def socket(self, path: str, **options: Any) -> WebSocket:
        url = self.url(path).replace("http", "ws", 1)
        if "origin" not in options:
            options["suppress_origin"] = True
        self.sockets.append(create_connection(url, timeout=PATIENCE_SECONDS, **options))
        return self.sockets[-1]

    def close(self) -> None:
        for socket in self.sockets:
            socket.close()


def eventually(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "It did not come to that."
        time.sleep(0.01)


def heard(socket: WebSocket, is_last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The messages up to and with the last one, as the recordings write them down."""
    messages = []
    while True:
        received = socket.recv()
        told = json.loads(received) if isinstance(received, str) else _binary(received)
        messages.append(told)
        if is_last(told):
            return messages


def is_end(message: dict[str, Any]) -> bool:
    return message.get("type") == "executing" and message["data"]["node"] is None


def is_silent(socket: WebSocket, *, seconds: float) -> bool:
    socket.settimeout(seconds)
    try:
        socket.recv()
    except WebSocketTimeoutException:
        return True
    return False


def _binary(frame: bytes) -> dict[str, Any]:
    event, second = (int.from_bytes(frame[start : start + 4], "big") for start in (0, 4))
    told = {"BINARY": True, "event_type_u32be": event, "first_16_bytes_hex": frame[:16].hex()}
    if event == 1:
        return {**told, "image_format_u32be": second, "payload_magic": frame[8:16].hex()}
    metadata, image = frame[8 : 8 + second], frame[8 + second :]
    told |= {"metadata_length_u32be": second, "metadata": json.loads(metadata)}
    return {**told, "payload_magic": image[:8].hex()}
