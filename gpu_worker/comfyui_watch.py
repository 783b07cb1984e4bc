"""Follows one prompt to its end, by what ComfyUI says on the websocket and when asked.

The end is the prompt's entry in the history, and nothing else. The websocket tells when to
look for it; without one, or when it is silent, we look again and again.

A prompt that makes no progress is given up: ComfyUI can lose the thread that runs prompts
while it goes on answering, and then everything waits for ever.
"""

import time
from dataclasses import dataclass
from typing import Any

from gpu_worker.comfyui import ComfyUI, NoAnswer, Queue
from gpu_worker.comfyui_socket import Message, ProgressSocket
from gpu_worker.graph import Meter
from gpu_worker.patience import Patience
from gpu_worker.provider import Progress, Unwell

WAKE_SECONDS = 0.1  # how late a stop is noticed
LOOK_SECONDS = 2.0  # after so long without a message
LOOK_ANSWER_SECONDS = 2.0  # a late answer is no failure, but a stop has to wait for it
LOOK_SOON_SECONDS = 0.02
LOOK_BLIND_MOST_SECONDS = 0.5
LOST_AFTER_SECONDS = 0.5  # unknown for so long: between two answers a prompt may move on
TELL_SECONDS = 0.1
SILENT_MOST_SECONDS = 60.0

_ENDINGS = ("execution_success", "execution_error", "execution_interrupted")


class Stalled(Unwell):
    """It answers, and nothing moves."""


@dataclass(frozen=True)
class Stalls:
    running_seconds: float
    queued_seconds: float


class Watch:
    def __init__(
        self,
        comfyui: ComfyUI,
        socket: ProgressSocket,
        *,
        prompt_id: str,
        meter: Meter,
        progress: Progress,
        patience: Patience,
        stalls: Stalls,
    ) -> None:
        self.comfyui, self.socket, self.prompt_id = comfyui, socket, prompt_id
        self.meter, self.progress = meter, progress
        self.patience, self.stalls = patience, stalls
        now = time.monotonic()
        self.moved_at = self.answered_at = now
        self.unknown_since: float | None = None
        self.seen: Queue | None = None
        self.told_at = 0.0
        self.pause = LOOK_SOON_SECONDS
        # Several looks have to fit into the time after which we give up.
        self.look_seconds = min(
            LOOK_SECONDS, min(stalls.running_seconds, stalls.queued_seconds) / 4
        )
        self.look_at = now + self.look_seconds if socket.is_open else now

    def until_end(self) -> dict[str, Any]:
        """The history entry, however the prompt ended."""
        while True:
            self.patience.check()
            self._listen()
            if time.monotonic() >= self.look_at and (entry := self._look()) is not None:
                return entry
            self._require_movement()

    def _listen(self) -> None:
        left = max(self.look_at - time.monotonic(), 0.0)
        if not self.socket.is_open:
            self.patience.wait(left)
            return
        message = self.socket.receive(seconds=max(min(left, WAKE_SECONDS), 0.001))
        if message is not None and message.content.get("prompt_id") == self.prompt_id:
            self._read(message)
        if not self.socket.is_open:
            self.look_at = time.monotonic()  # ComfyUI itself may be gone

    def _read(self, message: Message) -> None:
        now = self.moved_at = time.monotonic()
        self.seen = None  # it moved on since
        self.meter.read(message.kind, message.content)
        if message.kind == "executing" and message.content.get("node") is None:
            self.look_at = now  # sent after the entry was written
        elif message.kind in _ENDINGS:
            self.look_at = now + WAKE_SECONDS  # the entry may not be there yet
        else:
            self.look_at = now + self.look_seconds
        if now - self.told_at >= TELL_SECONDS:
            self.told_at = now
            self.progress(self.meter.share, self.meter.node)

    def _look(self) -> dict[str, Any] | None:
        try:
            entry = self.comfyui.history(self.prompt_id, seconds=LOOK_ANSWER_SECONDS)
            queue = None if entry else self.comfyui.queue(seconds=LOOK_ANSWER_SECONDS)
        except NoAnswer:
            self._require_answer()
            self.look_at = time.monotonic() + LOOK_SOON_SECONDS
            return None
        self.answered_at = time.monotonic()
        if queue is not None:
            self._note(queue)
        return entry

    def _note(self, queue: Queue) -> None:
        now = time.monotonic()
        is_running = self.prompt_id in queue.running
        if is_running or self.prompt_id in queue.pending:
            self.unknown_since = None
        else:
            self.unknown_since = self.unknown_since or now
            if now - self.unknown_since >= LOST_AFTER_SECONDS:
                raise Unwell("ComfyUI no longer knows the prompt: it was restarted, or emptied.")
        # Without a socket nothing more can be seen of a run than that it is one.
        if queue != self.seen or (is_running and not self.socket.is_open):
            self.moved_at = now
        self.seen = queue
        self._plan_next_look(now)

    def _plan_next_look(self, now: float) -> None:
        if self.unknown_since is not None:
            self.look_at = now + LOOK_SOON_SECONDS
        elif self.socket.is_open:
            self.look_at = now + self.look_seconds
        else:
            self.look_at = now + self.pause
            self.pause = min(self.pause * 1.5, LOOK_BLIND_MOST_SECONDS)

    def _require_answer(self) -> None:
        silent = time.monotonic() - max(self.answered_at, self.moved_at)
        if silent >= min(SILENT_MOST_SECONDS, self.stalls.running_seconds):
            raise Stalled(f"ComfyUI has not answered for {silent:.0f} seconds.")

    def _require_movement(self) -> None:
        still = time.monotonic() - self.moved_at
        waits_for_nobody = self.seen is not None and not self.seen.running
        if waits_for_nobody and still >= self.stalls.queued_seconds:
            raise Stalled(f"ComfyUI runs nothing, and left the prompt waiting for {still:.0f} s.")
        if still >= self.stalls.running_seconds:
            raise Stalled(f"The prompt has made no progress for {still:.0f} s.")
