"""The prompts that wait, the one that runs, and the history of those that ended.

All in memory: a restart forgets them. The smallest number is served first.
"""

import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_LONGEST_HISTORY = 10_000

# (number, prompt_id, prompt, extra_data, output node ids), as /queue and /history show it.
Item = tuple[float, str, dict[str, Any], dict[str, Any], list[str]]


@dataclass
class PromptQueue:
    changed: Callable[[], None]  # tells the clients how many are left
    lock: threading.RLock = field(default_factory=threading.RLock)
    pending: list[Item] = field(default_factory=list)
    running: list[Item] = field(default_factory=list)
    history: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.filled = threading.Condition(self.lock)

    def put(self, item: Item) -> None:
        with self.lock:
            # The same number and id twice would be ordered by the prompts, which have no order.
            heapq.heappush(self.pending, item)
            self.changed()
            self.filled.notify()

    def take(self) -> Item:
        with self.lock:
            self.filled.wait_for(lambda: self.pending)
            item = heapq.heappop(self.pending)
            self.running.append(item)
            self.changed()
            return item

    def end(self, item: Item, *, entry: dict[str, Any]) -> None:
        with self.lock:
            self.running.remove(item)
            self.history.pop(item[1], None)
            self.history[item[1]] = {"prompt": item, **entry}
            if len(self.history) > _LONGEST_HISTORY:
                del self.history[next(iter(self.history))]
            self.changed()

    def remaining(self) -> int:
        with self.lock:
            return len(self.pending) + len(self.running)

    def snapshot(self) -> tuple[list[Item], list[Item]]:
        with self.lock:
            return list(self.running), list(self.pending)

    def delete(self, prompt_id: str) -> None:
        """Only what still waits can be deleted."""
        with self.lock:
            kept = [item for item in self.pending if item[1] != prompt_id]
            if len(kept) < len(self.pending):
                self.pending = kept
                heapq.heapify(self.pending)
                self.changed()

    def clear(self) -> None:
        with self.lock:
            self.pending = []
            self.changed()

    def recent_history(self, *, most: int | None, offset: int) -> dict[str, dict[str, Any]]:
        with self.lock:
            entries = list(self.history.items())
        if offset < 0 and most is not None:
            offset = len(entries) - most
        start = max(0, offset)
        return dict(entries[start : None if most is None else start + most])
