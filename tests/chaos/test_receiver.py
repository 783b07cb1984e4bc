"""Who listens to webhooks keeps what it was told, also when it is killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import requests

from scripts.server_process import free_port
from scripts.stack_parts import http_answers
from tests.chaos.receiver import HOST, heard

SECONDS = 20.0


def start(port: int, file: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-m", "tests.chaos.receiver", str(port), str(file)])
    until = time.monotonic() + SECONDS
    while not http_answers(f"http://{HOST}:{port}/"):
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "heard.jsonl"
    assert heard(file) == []
    for number in range(2):
        process = start(port, file)
        sent = requests.post(
            f"http://{HOST}:{port}/ada", data=f"message {number}", headers={"X-Id": "7"}, timeout=5
        )
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
        assert sent.status_code == 200
    assert [one["body"] for one in heard(file)] == ["message 0", "message 1"]
    assert {one["path"] for one in heard(file)} == {"/ada"}
    assert heard(file)[0]["headers"]["x-id"] == "7"


def test_half_a_line_is_no_message(tmp_path: Path) -> None:
    file = tmp_path / "heard.jsonl"
    file.write_text('{"body": "whole"}\n{"bo{"body": "behind it"}\n{"body": "last"}\n{"body')
    assert [one["body"] for one in heard(file)] == ["whole", "last"]
