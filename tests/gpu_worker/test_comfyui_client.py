"""The client against servers that are no ComfyUI, or one in trouble."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpu_worker.comfyui import ComfyUI, Gone, NoAnswer, Refused
from gpu_worker.comfyui_socket import opened
from gpu_worker.provider import Stopped, Unwell
from scripts.server_process import free_port


class Odd(BaseHTTPRequestHandler):
    """Answers everything with what its path asks for: /STATUS/BODY/..."""

    protocol_version = "HTTP/1.1"
    received: list[bytes] = []
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        _, status, body, *_ = self.path.split("/")
        if status == "silent":
            self.rfile.read(1)  # until the client gives up
            return
        if status == "break":
            self.close_connection = True
            return
        content = {"list": b"[]", "text": b"<html>", "empty": b"{}", "short": b"abc"}[body]
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(content) + (body == "short")))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = body == "short"

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def client(url: str) -> Iterator[ComfyUI]:
    comfyui = ComfyUI(url)
    try:
        yield comfyui
    finally:
        comfyui.close()


@pytest.mark.parametrize("answer", ["200/list", "200/text", "200/short", "500/text", "503/empty"])
def test_an_answer_that_is_none_of_comfyuis_is_not_the_jobs_fault(odd: str, answer: str) -> None:
    with client(f"{odd}/{answer}") as comfyui:
        for ask in (
            lambda: comfyui.stats(seconds=5),
            lambda: comfyui.history("x"),
            lambda: comfyui.queue(),
            lambda: comfyui.submit({}, prompt_id="x", client_id="y"),
        ):
            with pytest.raises(Unwell):
                ask()


def test_an_empty_answer_names_no_prompt(odd: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"a")
    with client(f"{odd}/200/empty") as comfyui:
        assert comfyui.history("x") is None
        assert comfyui.queue().pending == []
        with pytest.raises(Unwell, match="did not name"):
            comfyui.submit({}, prompt_id="x", client_id="y")
        with pytest.raises(Unwell, match="did not name"):
            comfyui.upload(tmp_path / "a.png", name="a.png", check=lambda: None)


def test_a_refusal_carries_what_was_said(odd: str) -> None:
    with client(f"{odd}/403/text") as comfyui, pytest.raises(Refused) as refused:
        comfyui.queue()
    assert (refused.value.status, refused.value.body) == (403, "<html>")


def test_nobody_there(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with client(url) as comfyui, pytest.raises(Gone):
        comfyui.queue()
    with opened(url) as socket:
        assert not socket.is_open
        assert socket.receive(seconds=0.1) is None


def test_a_server_that_is_silent_or_hangs_up(odd: str) -> None:
    with client(f"{odd}/silent/x") as comfyui, pytest.raises(NoAnswer):
        comfyui.stats(seconds=0.2)
    with client(f"{odd}/break/x") as comfyui, pytest.raises(Gone):
        comfyui.stats(seconds=5)


def test_reading_is_tried_twice_and_a_prompt_is_sent_once(odd: str) -> None:
    with client(f"{odd}/break/twice") as comfyui:
        with pytest.raises(Gone):
            comfyui.history("x")
        with pytest.raises(Gone):
            comfyui.submit({}, prompt_id="x", client_id="y")
    assert Odd.asked.count("/break/twice/history/x") == 2
    assert Odd.asked.count("/break/twice/prompt") == 1


def test_a_file_that_breaks_off_is_noticed(odd: str, tmp_path: Path) -> None:
    with client(f"{odd}/200/short") as comfyui, pytest.raises(Gone, match="broke off"):
        comfyui.download(filename="a", subfolder="", to=tmp_path / "a", check=lambda: None)


def test_an_upload_is_a_form_and_can_be_broken_off(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    path.write_bytes(b"x" * 3_000_000)
    with client(f"{odd}/200/empty") as comfyui:
        with pytest.raises(Unwell):
            comfyui.upload(path, name="a.bin", check=lambda: None)
        sent = Odd.received[-1]
        assert b'name="image"; filename="a.bin"' in sent
        assert sent.count(b"x" * 3_000_000) == 1

        def refuse() -> None:
            raise Stopped("enough")

        with pytest.raises(Stopped):
            comfyui.upload(path, name="a.bin", check=refuse)
        assert comfyui.history("x") is None  # the client goes on working


def test_no_proxy_stands_between(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with client(f"{odd}/200/empty") as comfyui:
        assert json.dumps(comfyui.stats(seconds=5)) == "{}"
