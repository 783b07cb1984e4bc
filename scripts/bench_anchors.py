"""What `bench pipeline` compares with: bare Celery, and ComfyUI driven by hand."""

import json
import time
import uuid
from pathlib import Path
from typing import Any

import requests
import websocket
from celery import Celery
from redis import Redis

from scripts.bench_noop import NOOP, QUEUE, START, STARTS


class BareCelery:
    """Sends to the worker of bench_noop.py."""

    def __init__(self, redis_url: str) -> None:
        self._redis = Redis.from_url(redis_url)
        self._app = Celery("bench", broker=redis_url, set_as_current=False)
        self._app.conf.update(task_serializer="json", task_ignore_result=True)

    def rate(self, count: int) -> float:
        """Tasks a second, from the moment all of them wait."""
        with (
            self._app.producer_pool.acquire(block=True) as producer,
            producer.batch(max_size=500),  # type: ignore[attr-defined]
        ):
            for _ in range(count):
                self._app.send_task(NOOP, queue=QUEUE, producer=producer)
        waiting, begin = int(self._redis.llen(QUEUE)), time.perf_counter()  # type: ignore[arg-type]
        self._wait_until_empty()
        return waiting / (time.perf_counter() - begin)

    def _wait_until_empty(self) -> None:
        while self._redis.llen(QUEUE) or self._redis.hlen(f"{QUEUE}.unacked"):
            time.sleep(0.005)

    def start_seconds(self) -> float:
        """From sending a task to its start on an idle worker."""
        begin = time.time()
        self._app.send_task(START, queue=QUEUE)
        popped: Any = self._redis.blpop([STARTS], timeout=10)
        if popped is None:
            raise RuntimeError("The bare Celery worker does not run.")
        return float(popped[1]) - begin


class Direct:
    """The same job without us: a client with a websocket, as in any tutorial."""

    def __init__(self, url: str) -> None:
        self._url, self._session = url, requests.Session()
        self._client_id = uuid.uuid4().hex
        self._socket = websocket.create_connection(
            url.replace("http", "ws", 1) + f"/ws?clientId={self._client_id}", timeout=10
        )
        self._colour = 0

    def seconds(self) -> float:
        begin = time.perf_counter()
        prompt_id = self._submit()
        self._wait_for(prompt_id)
        [image] = self._history(prompt_id)["outputs"]["2"]["images"]
        self._session.get(f"{self._url}/view", params=image, timeout=10).raise_for_status()
        return time.perf_counter() - begin

    def close(self) -> None:
        self._socket.close()

    def _submit(self) -> str:
        self._colour += 1  # otherwise ComfyUI answers from its cache
        card = {"width": 64, "height": 64, "batch_size": 1, "color": self._colour}
        graph = {
            "1": {"class_type": "EmptyImage", "inputs": card},
            "2": {
                "class_type": "SaveImage",
                "inputs": {"images": ["1", 0], "filename_prefix": "direct"},
            },
        }
        answer = self._session.post(
            f"{self._url}/prompt", json={"prompt": graph, "client_id": self._client_id}, timeout=10
        )
        return str(answer.json()["prompt_id"])

    def _wait_for(self, prompt_id: str) -> None:
        while True:
            message = self._socket.recv()
            if isinstance(message, str):
                told = json.loads(message)
                end = {"node": None, "prompt_id": prompt_id}
                if told["type"] == "executing" and told["data"].items() >= end.items():
                    return

    def _history(self, prompt_id: str) -> dict[str, Any]:
        answer = self._session.get(f"{self._url}/history/{prompt_id}", timeout=10)
        found: dict[str, Any] = answer.json()[prompt_id]
        return found


def prompts(comfyui_url: str) -> list[dict[str, Any]]:
    """What the stand-in was sent, and when."""
    found: list[dict[str, Any]] = requests.get(f"{comfyui_url}/stand-in/prompts", timeout=5).json()
    return found


def memory_mb(process: int) -> float:
    """What a process holds in memory (RSS)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    resident = next(line for line in lines if line.startswith("VmRSS:"))
    return int(resident.split()[1]) / 1024
