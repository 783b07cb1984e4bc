"""Runs prompts, one at a time, on one thread that nobody watches.

`executing` without a node is sent last, after the entry in the history exists. What goes wrong
outside of a node ends the thread: HTTP goes on answering, and prompts are accepted and wait.
"""

import threading
import time

from scripts.comfyui_stand_in.prompt_queue import PromptQueue
from scripts.comfyui_stand_in.prompt_run import PromptRun, Surroundings


class Executor:
    def __init__(self, queue: PromptQueue, around: Surroundings) -> None:
        self.queue = queue
        self.around = around
        self.shall_forget = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self.run_for_ever, name="prompts", daemon=True).start()

    def run_for_ever(self) -> None:
        while True:
            self.run_next()

    def run_next(self) -> None:
        item = self.queue.take()
        if self.shall_forget.is_set():
            self.shall_forget.clear()
            self.around.cache.clear()
        started = time.time()
        entry = PromptRun(item, self.around).to_the_end()
        if self.around.faults.success_before_history_ms:
            time.sleep(self.around.faults.success_before_history_ms / 1000)
        self.around.sockets.current_node = None
        self.queue.end(item, entry=entry)
        self._say_idle(item[1])
        _log(item[1], entry["status"]["status_str"], started)

    def interrupt(self) -> None:
        self.around.shall_stop.set()

    def _say_idle(self, prompt_id: str) -> None:
        sockets = self.around.sockets
        if sockets.client_id is not None:
            message = {"node": None, "prompt_id": prompt_id}
            sockets.send("executing", message, sockets.client_id)


def _log(prompt_id: str, outcome: str, started: float) -> None:
    begun = time.strftime("%H:%M:%S", time.localtime(started))
    ended = time.strftime("%H:%M:%S", time.localtime())
    print(
        f"prompt {prompt_id}: {outcome}, {begun} to {ended}, {time.time() - started:.3f} s",
        flush=True,
    )
