"""All that was recorded with a real ComfyUI, replayed against the stand-in: a test a file."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scripts.comfyui_stand_in.process import comfyui
from tests.stand_ins.comfyui_file_scenes import FILE_SCENES, LIMITS
from tests.stand_ins.comfyui_prompt_scenes import PROMPT_SCENES
from tests.stand_ins.comfyui_replay import (
    RECORDINGS,
    TINY,
    Replay,
    comparable,
    eventually,
    recording,
)
from tests.stand_ins.comfyui_socket_scenes import SOCKET_SCENES

SCENES = {**PROMPT_SCENES, **FILE_SCENES, **SOCKET_SCENES}
LIMITED = "security_origin_limits"  # was recorded with a server of other options
HOSTILE = "hostile_prompts"  # leaves a server behind that has to be started again


def test_every_recording_is_replayed() -> None:
    assert {*SCENES, HOSTILE} == {path.stem for path in RECORDINGS.glob("*.json")}


@pytest.mark.parametrize("name", sorted(set(SCENES) - {LIMITED}))
def test_the_stand_in_answers_as_recorded(replay: Replay, name: str) -> None:
    SCENES[name](replay, recording(name))


def test_the_stand_in_keeps_its_limits_as_recorded(tmp_path: Path) -> None:
    with comfyui(tmp_path, options=LIMITS) as server, closing(Replay(server)) as replay:
        SCENES[LIMITED](replay, recording(LIMITED))


@pytest.mark.parametrize("case", recording(HOSTILE)["exchanges"], ids=lambda case: case["note"])
def test_a_hostile_prompt_does_as_recorded(
    replay: Replay, request: pytest.FixtureRequest, case: dict[str, Any]
) -> None:
    if case["healthy_after"] is not True:
        request.addfinalizer(replay.server.restart)
    replay.check(case["post"])
    if "GONE" in str(case["healthy_after"]):
        eventually(lambda: "unhashable type: 'dict'" in replay.server.program.log_text())
        eventually(lambda: replay.status_of("/queue") is None)
        return
    told = case["post"]["response_body"]
    if case["history_status"]:
        path = f"/history/{told['prompt_id']}"
        eventually(lambda: replay.get(path))
        (entry,) = replay.get(path).values()
        assert comparable(replay.as_recorded(entry["status"])) == comparable(case["history_status"])
    assert replay.status_of("/api/jobs") == case["GET /api/jobs"]
    check_health(replay, case)


def check_health(replay: Replay, case: dict[str, Any]) -> None:
    if case["healthy_after"] is True:
        replay.run(TINY, "next")
        return
    replay.until_running(case["post"]["response_body"]["prompt_id"])
    fatal = case["log_tail"][-2].split(":")[0]  # the error that ended the thread
    eventually(lambda: f"\n{fatal}: " in replay.server.program.log_text())
    replay.post(TINY, "next")
    assert replay.get("/prompt")["exec_info"]["queue_remaining"] == 2
    assert replay.get("/api/jobs/next")["status"] == "pending"
    assert replay.status_of("/system_stats") == 200
