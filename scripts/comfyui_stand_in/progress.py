"""How far the nodes of the running prompt are, told to its client after every change."""

from typing import Any

from PIL import Image

from scripts.comfyui_stand_in.sockets import Sockets


class Progress:
    def __init__(self, sockets: Sockets, prompt_id: str) -> None:
        self.sockets = sockets
        self.prompt_id = prompt_id
        self.nodes: dict[str, dict[str, Any]] = {}

    def start(self, node_id: str) -> None:
        self._tell(node_id, value=0.0, maximum=1.0, state="running")

    def update(
        self, node_id: str, *, value: int, maximum: int, preview: Image.Image | None
    ) -> None:
        self._tell(node_id, value=value, maximum=maximum, state="running")
        wants_metadata = self.sockets.wants_metadata()
        if preview and wants_metadata:
            self.sockets.send_preview(preview, self._names(node_id))
        progress = {"value": value, "max": maximum, "prompt_id": self.prompt_id, "node": node_id}
        self.sockets.send("progress", progress, self.sockets.client_id)
        if preview and not wants_metadata:
            self.sockets.send_preview(preview, None)

    def finish(self, node_id: str) -> None:
        maximum = self.nodes[node_id]["max"] if node_id in self.nodes else 1
        self._tell(node_id, value=maximum, maximum=maximum, state="finished")

    def _tell(self, node_id: str, *, value: float, maximum: float, state: str) -> None:
        self.nodes[node_id] = {
            "value": value,
            "max": maximum,
            "state": state,
            **self._names(node_id),
        }
        message = {"prompt_id": self.prompt_id, "nodes": self.nodes}
        self.sockets.send("progress_state", message, self.sockets.client_id)

    def _names(self, node_id: str) -> dict[str, str | None]:
        return {
            "node_id": node_id,
            "prompt_id": self.prompt_id,
            "display_node_id": node_id,
            "parent_node_id": None,
            "real_node_id": node_id,
        }
