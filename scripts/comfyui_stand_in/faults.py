"""Rare events, made to happen on demand. Set by POST /stand-in/faults; none by default."""

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Faults:
    lose_interrupts: int = 0  # that many requests to interrupt are answered and forgotten
    success_before_history_ms: int = 0  # execution_success is sent so long before the entry
    fail_prompts: int = 0  # that many prompts are answered with prompt_status
    prompt_status: int = 500
    hold_at_node: str | None = None  # the node of this id waits before it runs, until changed
    _held_at_node: str | None = None
    _released: threading.Condition = field(default_factory=threading.Condition)

    def set(self, wanted: dict[str, Any]) -> None:
        """Raises ValueError for a fault that does not exist."""
        if unknown := sorted(set(wanted) - set(self._settings())):
            raise ValueError(f"There is no fault called {', '.join(unknown)}.")
        with self._released:
            for name, value in wanted.items():
                setattr(self, name, value)
            self._released.notify_all()

    def told(self) -> dict[str, Any]:
        return {**self._settings(), "held_at_node": self._held_at_node}

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def loses_interrupt(self) -> bool:
        lost = self.lose_interrupts > 0
        self.lose_interrupts -= lost
        return lost

    def fails_prompt(self) -> bool:
        fails = self.fail_prompts > 0
        self.fail_prompts -= fails
        return fails

    def wait_at(self, node_id: str) -> None:
        with self._released:
            while self.hold_at_node == node_id:
                self._held_at_node = node_id
                self._released.wait()
            self._held_at_node = None
