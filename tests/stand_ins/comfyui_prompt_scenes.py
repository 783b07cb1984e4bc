"""Scenes for the recordings about prompts: each brings the server into the state it was in when
the file was recorded, and replays the file.
"""

from collections.abc import Callable
from typing import Any

from PIL import Image

from tests.stand_ins.comfyui_replay import TINY, Replay, workflow

Scene = Callable[[Replay, Any], None]

#: Of the machine that was recorded.
OF_THE_MACHINE = {"argv", "python_version", "ram_total", "ram_free"}
OF_THE_DEVICE = {"vram_total", "vram_free", "torch_vram_total", "torch_vram_free"}


def single(replay: Replay, recorded: Any) -> None:
    replay.check(recorded)


def one_after_another(replay: Replay, recorded: Any) -> None:
    for exchange in recorded["exchanges"]:
        replay.until_idle()
        replay.check(exchange)


def with_a_file_outside(replay: Replay, recorded: Any) -> None:
    """Names with many steps up lead to a picture that is not in the input folder."""
    outside = replay.server.folder / "media"
    outside.mkdir(exist_ok=True)
    Image.new("RGB", (8, 8)).save(outside / "in.png")
    steps = "../" * 8
    replay.ids[f"{steps}srv/media"] = "../" * 40 + str(outside).lstrip("/")
    one_after_another(replay, recorded)


def system_stats(replay: Replay, recorded: Any) -> None:
    answer = replay.send(recorded)
    assert _machine_left_out(answer.json()) == _machine_left_out(recorded["response_body"])


def _machine_left_out(stats: Any) -> Any:
    assert set(stats["system"]) >= OF_THE_MACHINE
    assert set(stats["devices"][0]) >= OF_THE_DEVICE
    system = {name: value for name, value in stats["system"].items() if name not in OF_THE_MACHINE}
    device = {
        name: value for name, value in stats["devices"][0].items() if name not in OF_THE_DEVICE
    }
    return system, device


def object_info_node(replay: Replay, recorded: Any) -> None:
    inputs = replay.server.folder / "input"
    (inputs / "garbage.png").unlink()
    for exchange in recorded["exchanges"]:
        for name in _choices(exchange["response_body"]):
            (inputs / name).touch()
    one_after_another(replay, recorded)


def _choices(described: Any) -> list[str]:
    if "LoadImage" in described:
        return list(described["LoadImage"]["input"]["required"]["image"][0])
    if "LoadVideo" in described:
        return list(described["LoadVideo"]["input"]["required"]["file"][1]["options"])
    return []


def object_info_all_shape(replay: Replay, recorded: Any) -> None:
    """The real one has 437 classes; ours are fewer, of the same shape."""
    every = replay.get(recorded["path"])
    assert "SaveImage" in every
    for described in every.values():
        assert set(recorded["keys_of_one"]) <= set(described)
    assert sorted(every["SaveImage"]) == recorded["keys_of_one"]


def queue_running_and_pending(replay: Replay, recorded: Any) -> None:
    queue = recorded["exchanges"][0]["response_body"]
    hold_and_post(replay, queue["queue_running"][0], queue["queue_pending"][0])
    replay.check(recorded["exchanges"][0])


def hold_and_post(replay: Replay, *items: Any, at: str = "2") -> None:
    """The first of these prompts runs until it is let go; the others wait."""
    replay.faults(hold_at_node=at)
    for _, prompt_id, prompt, extra_data, _ in items:
        client = {"client_id": extra_data["client_id"]} if "client_id" in extra_data else {}
        replay.post(prompt, prompt_id, **client)
        replay.until_held(at)


def queue_delete_clear(replay: Replay, recorded: Any) -> None:
    before, after = recorded["exchanges"][:3], recorded["exchanges"][3:]
    queue = after[0]["response_body"]
    hold_and_post(
        replay, queue["queue_running"][0], [0, "qd-1", TINY, {}, []], queue["queue_pending"][0]
    )
    for exchange in before + after:
        replay.check(exchange)
    assert replay.get("/queue")["queue_pending"] == []


def interrupt(replay: Replay, recorded: Any) -> None:
    slow = workflow("slow_chain_interruptible")
    first, *others = recorded["exchanges"]
    replay.check(first)
    hold_and_post(replay, [0, "int-2", slow, {}, []], [0, "int-2q", TINY, {}, []])
    for exchange in others:
        replay.check(exchange)
    replay.faults(hold_at_node=None)
    replay.until_idle()
    assert replay.get("/api/jobs/int-2")["status"] == "failed"
    assert replay.get("/api/jobs/int-2q")["status"] == "completed"


def history_delete_and_free(replay: Replay, recorded: Any) -> None:
    replay.run(TINY, "qd-run")
    (entry,) = recorded["exchanges"][3]["response_body"].values()
    hold_and_post(replay, entry["prompt"], at="1")
    replay.order("/interrupt", {})
    replay.faults(hold_at_node=None)
    one_after_another(replay, recorded)


def history_states_and_jobs(replay: Replay, recorded: Any) -> None:
    exchanges = recorded["exchanges"]
    *_, by_workflow = exchanges
    for job in reversed(by_workflow["response_body"]["jobs"]):
        extra_data = {"extra_pnginfo": {"workflow": {"id": "wf-1"}}}
        replay.run(TINY, job["id"], extra_data=extra_data, client_id="A")
    run, fail_1, fail_2, interrupted = (_entry(exchanges[index]) for index in (8, 9, 10, 12))
    hold_and_post(replay, run, [0, "queued-1", TINY, {}, []])
    for exchange in exchanges[:8]:
        replay.check(exchange)
    replay.faults(hold_at_node=None)
    replay.until_idle()
    for failing in (fail_1, fail_2):
        replay.run(failing[2], failing[1], client_id="A")
    for exchange in exchanges[8:11]:
        replay.check(exchange)
    hold_and_post(replay, interrupted)
    replay.check(exchanges[11])
    replay.faults(hold_at_node=None)
    replay.until_idle()
    for exchange in exchanges[12:]:
        # How many jobs there were in all depends on what was done to the recorded server before.
        pagination = exchange["response_body"].get("pagination", {})
        if pagination.get("total", 0) > 2:
            pagination["total"] = replay.get(exchange["path"])["pagination"]["total"]
        replay.check(exchange)


def _entry(exchange: Any) -> Any:
    (entry,) = exchange["response_body"].values()
    return entry["prompt"]


PROMPT_SCENES: dict[str, Scene] = {
    "features": single,
    "get_prompt_queue_remaining": single,
    "history_delete_and_free": history_delete_and_free,
    "history_states_and_jobs": history_states_and_jobs,
    "interrupt": interrupt,
    "object_info_all_shape": object_info_all_shape,
    "object_info_node": object_info_node,
    "prompt_success": one_after_another,
    "prompt_validation_errors": with_a_file_outside,
    "queue_delete_clear": queue_delete_clear,
    "queue_idle": single,
    "queue_running_and_pending": queue_running_and_pending,
    "system_stats": system_stats,
}
