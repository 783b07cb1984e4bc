"""One prompt from its start to its end, told to its client while it goes on.

A failing node fails its prompt and no more. Nodes that ended before it keep their outputs.
"""

import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from scripts.comfyui_stand_in.cache import Cache, is_link
from scripts.comfyui_stand_in.execution_order import ExecutionOrder
from scripts.comfyui_stand_in.faults import Faults
from scripts.comfyui_stand_in.folders import Folders
from scripts.comfyui_stand_in.node_classes import CLASSES, Interrupted, NodeClass, Result, Work
from scripts.comfyui_stand_in.progress import Progress
from scripts.comfyui_stand_in.prompt_queue import Item
from scripts.comfyui_stand_in.sockets import Sockets
from scripts.comfyui_stand_in.validation import type_name


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What runs share with each other and with the server."""

    folders: Folders
    sockets: Sockets
    faults: Faults
    cache: Cache
    shall_stop: threading.Event = field(default_factory=threading.Event)


class PromptRun:
    def __init__(self, item: Item, around: Surroundings) -> None:
        _, self.prompt_id, self.prompt, self.extra_data, self.outputs = item
        self.around = around
        self.sockets = around.sockets
        self.progress = Progress(around.sockets, self.prompt_id)
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.shown: dict[str, Any] = {}
        self.executed: list[str] = []

    def to_the_end(self) -> dict[str, Any]:
        """Returns what the history shall say."""
        self.around.shall_stop.clear()  # an interrupt from before the start is lost here
        self.sockets.client_id = self.extra_data.get("client_id")
        self._note("execution_start", {"prompt_id": self.prompt_id})
        cache = self.around.cache
        cache.begin(self.prompt)
        known = [node_id for node_id in self.prompt if cache.get(node_id) is not None]
        self._note("execution_cached", {"nodes": known, "prompt_id": self.prompt_id})
        is_success = self._run_nodes()
        if is_success:
            self._note("execution_success", {"prompt_id": self.prompt_id})
        return {
            "outputs": self.shown,
            "status": {
                "status_str": "success" if is_success else "error",
                "completed": is_success,
                "messages": self.messages,
            },
            "meta": {node_id: _meta(node_id) for node_id in self.shown},
        }

    def _run_nodes(self) -> bool:
        order = ExecutionOrder(self.prompt, self.outputs, self.around.cache)
        while (node_id := order.next()) is not None:
            known = self.around.cache.get(node_id)
            if known is not None:
                self._replay(node_id, known)
            elif not self._run_node(node_id):
                return False
            order.done(node_id)
        return True

    def _replay(self, node_id: str, known: Result) -> None:
        """Without a client id nothing is replayed, and the history shows no outputs."""
        if self.sockets.client_id is not None:
            self._send_executed(node_id, known)
            if known.ui is not None:
                self.shown[node_id] = known.ui
        self.progress.finish(node_id)

    def _run_node(self, node_id: str) -> bool:
        inputs: dict[str, Any] = {}
        try:
            self.progress.start(node_id)
            self._send_executing(node_id)
            inputs.update(self._inputs(node_id))
            self._stop_if_asked()
            self.around.faults.wait_at(node_id)
            result = self._class(node_id).run(self._work(node_id), **inputs)
        except Interrupted:
            self._note("execution_interrupted", self._place(node_id), is_for_all=True)
            return False
        except Exception as error:  # whatever a node raises
            failure = {**self._place(node_id), **self._failure(node_id, error, inputs)}
            self._note("execution_error", failure)
            return False
        self._keep(node_id, result)
        return True

    def _keep(self, node_id: str, result: Result) -> None:
        self.around.cache.put(node_id, result)
        if result.ui is not None:
            self._send_executed(node_id, result)
            self.shown[node_id] = result.ui
        self.progress.finish(node_id)
        self.executed.append(node_id)

    def _class(self, node_id: str) -> NodeClass:
        return CLASSES[self.prompt[node_id]["class_type"]]

    def _inputs(self, node_id: str) -> dict[str, Any]:
        """The values of the declared inputs; others are ignored."""
        given, values = self.prompt[node_id]["inputs"], {}
        for name in self._class(node_id).inputs():
            if name in given and is_link(given[name]):
                source, slot = given[name]
                result = self.around.cache.get(source)
                values[name] = result.values[slot] if result else None
            elif name in given:
                values[name] = given[name]
        return values

    def _work(self, node_id: str) -> Work:
        def report(value: int, maximum: int, preview: Image.Image | None = None) -> None:
            self._stop_if_asked()
            self.progress.update(node_id, value=value, maximum=maximum, preview=preview)

        return Work(
            folders=self.around.folders,
            prompt=self.prompt,
            extra_pnginfo=self.extra_data.get("extra_pnginfo"),
            report=report,
        )

    def _stop_if_asked(self) -> None:
        if self.around.shall_stop.is_set():
            self.around.shall_stop.clear()
            raise Interrupted

    def _place(self, node_id: str) -> dict[str, Any]:
        return {
            "prompt_id": self.prompt_id,
            "node_id": node_id,
            "node_type": self.prompt[node_id]["class_type"],
            "executed": self.executed[::-1],
        }

    def _failure(self, node_id: str, error: Exception, inputs: dict[str, Any]) -> dict[str, Any]:
        if self._class(node_id).hidden:
            told = self.extra_data.get("extra_pnginfo")
            inputs = {**inputs, "prompt": self.prompt, "extra_pnginfo": told}
        return {
            "exception_message": f"{error}\n",
            "exception_type": type_name(type(error)),
            "traceback": traceback.format_tb(error.__traceback__),
            "current_inputs": {name: [_text(value)] for name, value in inputs.items()},
            "current_outputs": list(self.prompt),
        }

    def _note(self, event: str, message: dict[str, Any], *, is_for_all: bool = False) -> None:
        """Into the history, and to the client when there is one."""
        message = {**message, "timestamp": int(time.time() * 1000)}
        self.messages.append((event, message))
        if self.sockets.client_id is not None or is_for_all:
            self.sockets.send(event, message, self.sockets.client_id)

    def _send_executing(self, node_id: str) -> None:
        if self.sockets.client_id is not None:
            self.sockets.current_node = node_id
            message = {"node": node_id, "display_node": node_id, "prompt_id": self.prompt_id}
            self.sockets.send("executing", message, self.sockets.client_id)

    def _send_executed(self, node_id: str, result: Result) -> None:
        if self.sockets.client_id is not None:
            message = {
                "node": node_id,
                "display_node": node_id,
                "output": result.ui,
                "prompt_id": self.prompt_id,
            }
            self.sockets.send("executed", message, self.sockets.client_id)


def _meta(node_id: str) -> dict[str, str | None]:
    names = {"node_id": node_id, "display_node": node_id}
    return {**names, "parent_node": None, "real_node_id": node_id}


def _text(value: Any) -> Any:
    """An input as an error message shows it."""
    return value if value is None or isinstance(value, (int, float, str)) else str(value)
