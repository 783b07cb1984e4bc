"""How ComfyUI was started: told when results would show more than they should."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.self_hosted import SelfHosted
from scripts.comfyui_stand_in.process import comfyui
from tests.gpu_worker.file_server import file_server, whole

WARNING = "Results will carry the workflow in their metadata; start ComfyUI with --disable-metadata"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING):
        yield caplog


def test_a_comfyui_that_writes_the_workflow_into_results_is_told_once(
    told: pytest.LogCaptureFixture,
) -> None:
    with file_server() as server:
        stats = b'{"system": {"argv": ["main.py", "--listen"]}}'
        provider = SelfHosted(f"http://127.0.0.1:{server.port}")
        server.put("/system_stats", whole(stats))
        provider.check()
        provider.check()
        provider.close()
    assert told.text.count(WARNING) == 1


@pytest.mark.parametrize(
    "stats",
    [b"{}", b'{"system": []}', b'{"system": {"argv": ["main.py", "--disable-metadata"]}}'],
)
def test_one_that_does_not_or_does_not_say_is_not_suspected(
    told: pytest.LogCaptureFixture, stats: bytes
) -> None:
    with file_server() as server:
        provider = SelfHosted(f"http://127.0.0.1:{server.port}")
        server.put("/system_stats", whole(stats))
        provider.check()
        provider.close()
    assert told.text == ""


def test_the_stand_in_is_not_suspected(told: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    server: Any
    with comfyui(tmp_path / "comfyui") as server:
        provider = SelfHosted(server.url)
        provider.check()
        provider.close()
    assert told.text == ""
