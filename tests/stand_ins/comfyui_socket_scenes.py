"""Scenes for the recordings of websockets, and for those of the cache."""

import json
from typing import Any

import requests

from tests.stand_ins.comfyui_prompt_scenes import Scene
from tests.stand_ins.comfyui_replay import (
    PATIENCE_SECONDS,
    TINY,
    Replay,
    comparable,
    heard,
    is_end,
    is_silent,
    recording,
    workflow,
)

#: Two of a message: when it came, and how big the encoded picture was.
NOT_COMPARED = {"t_ms", "bytes"}

LOAD_GARBAGE = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "garbage.png"}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "err"}},
}
PREVIEW_THREE = {
    "1": {
        "class_type": "EmptyImage",
        "inputs": {"width": 64, "height": 64, "batch_size": 3, "color": 9},
    },
    "2": {"class_type": "SaveImageWebsocket", "inputs": {"images": ["1", 0]}},
}


def assert_same_messages(messages: list[Any], recorded: list[Any], replay: Replay) -> None:
    wanted = [
        {name: value for name, value in message.items() if name not in NOT_COMPARED}
        for message in recorded
    ]
    assert comparable(replay.as_recorded(messages)) == comparable(wanted)


def prompt_of(history: Any) -> Any:
    return history["prompt"][2]


def watched(prompt: Any, prompt_id: str) -> Scene:
    """Open the socket, run the prompt, hear everything."""

    def scene(replay: Replay, recorded: Any) -> None:
        socket = replay.socket(recorded["url"])
        messages = heard(socket, lambda _: True)
        if recorded["client_sent"]:
            socket.send(json.dumps(recorded["client_sent"]))
            messages += heard(socket, lambda _: True)
        replay.post(prompt, prompt_id, client_id=recorded["url"].split("=")[1])
        messages += heard(socket, is_end)
        assert_same_messages(messages, recorded["messages"], replay)

    return scene


def ws_cached_rerun(replay: Replay, recorded: Any) -> None:
    history = recorded["history"]["ws-ok-2"]
    replay.run(prompt_of(history), "ws-ok-1", client_id="ws-ok")
    watched(prompt_of(history), "ws-ok-2")(replay, recorded)
    assert comparable(replay.get("/history/ws-ok-2")) == comparable(recorded["history"])


def history_cached_without_client_id(replay: Replay, recorded: Any) -> None:
    prompt = prompt_of(recorded["history"])
    replay.run(prompt, "ws-ok-1", client_id="ws-ok")
    assert comparable(replay.run(prompt, "ws-ok-3")) == comparable(recorded["history"])


def cached_output_deleted(replay: Replay, recorded: Any) -> None:
    prompt = prompt_of(recorded["history"])
    before = replay.run(prompt, "stale-1", client_id="z")
    name = before["outputs"]["2"]["images"][0]["filename"]
    (replay.server.folder / "output" / name).unlink()
    history = replay.run(prompt, "stale-2", client_id="z")
    assert comparable(history) == comparable(recorded["history"])
    assert history["outputs"]["2"]["images"][0]["filename"] == name
    replay.check({**recorded["view"], "path": f"/view?filename={name}"})


def ws_interrupted(replay: Replay, recorded: Any) -> None:
    socket = replay.socket(recorded["url"])
    replay.faults(hold_at_node="2")
    replay.post(workflow("slow_chain_interruptible"), "ws-int-1", client_id="ws-int")
    messages = heard(socket, lambda told: told["data"].get("node") == "2")
    replay.until_held("2")
    answer = requests.post(replay.url("/interrupt"), timeout=PATIENCE_SECONDS)
    assert answer.status_code == 200
    replay.faults(hold_at_node=None)
    messages += heard(socket, is_end)
    assert_same_messages(messages, recorded["messages"], replay)


def ws_reconnect_mid_run(replay: Replay, recorded: Any) -> None:
    first = replay.socket(recorded["url"])
    replay.faults(hold_at_node="3")
    replay.post(workflow("slow_chain_interruptible"), "rc-1", client_id="rc")
    heard(first, lambda told: told["data"].get("node") == "3")
    first.close()
    second = replay.socket(recorded["url"])
    messages = heard(second, lambda told: told["type"] == "executing")
    replay.faults(hold_at_node=None)
    messages += heard(second, is_end)
    assert_same_messages(messages, recorded["messages"], replay)


def ws_prompt_without_client_id(replay: Replay, recorded: Any) -> None:
    """The greeting of the socket was left out of the recording."""
    socket = replay.socket(recorded["url"])
    heard(socket, lambda told: "sid" in told["data"])
    replay.post(PREVIEW_THREE, "iso-2")
    messages = heard(socket, lambda told: _remaining(told) == 0)
    assert_same_messages(messages, recorded["messages"], replay)


def _remaining(message: dict[str, Any]) -> int | None:
    if message.get("type") != "status":
        return None
    remaining: int = message["data"]["status"]["exec_info"]["queue_remaining"]
    return remaining


def ws_same_client_id_twice(replay: Replay, recorded: Any) -> None:
    older = replay.socket("/ws?clientId=twice")
    newer = replay.socket("/ws?clientId=twice")
    for socket in (older, newer):
        heard(socket, lambda told: "sid" in told["data"])
    older.close()
    replay.run(TINY, "same-1", client_id="twice")
    assert recorded["messages_after_old_closed"] == []
    assert is_silent(newer, seconds=0.3)


SOCKET_SCENES: dict[str, Scene] = {
    "cached_output_deleted": cached_output_deleted,
    "history_cached_without_client_id": history_cached_without_client_id,
    "ws_binary_preview_legacy": watched(PREVIEW_THREE, "ws_binary_preview_legacy-1"),
    "ws_binary_preview_with_metadata": watched(PREVIEW_THREE, "ws_binary_preview_with_metadata-1"),
    "ws_cached_rerun": ws_cached_rerun,
    "ws_execution_error": watched(LOAD_GARBAGE, "ws-err-1"),
    "ws_interrupted": ws_interrupted,
    "ws_prompt_without_client_id_seen_by_other_client": ws_prompt_without_client_id,
    "ws_reconnect_mid_run": ws_reconnect_mid_run,
    "ws_same_client_id_twice": ws_same_client_id_twice,
    "ws_success": watched(prompt_of(recording("ws_cached_rerun")["history"]["ws-ok-2"]), "ws-ok-1"),
}
