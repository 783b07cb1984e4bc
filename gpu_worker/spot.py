"""Watches for the end of this instance: Spot interruption, rebalance, scale-in.

The first notice is passed on, once. No answer of the metadata service, however odd, ends the
watch; an odd answer is no notice either.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import datetime

from gpu_worker.imds import Imds, MetadataUnavailable

logger = logging.getLogger(__name__)

_SAY_AGAIN_SECONDS = 3600.0  # the same trouble is not worth more than a line an hour
_CLOSE_SECONDS = 0.5  # it may be waiting for an answer, and nobody needs that any more

Notice = Callable[[str], None]


class OddAnswer(ValueError):
    """Metadata says something that no notice looks like."""


class SpotMonitor:
    def __init__(self, imds: Imds, *, every_seconds: float, on_notice: Notice) -> None:
        self._imds = imds
        self._every_seconds = every_seconds
        self._on_notice = on_notice
        self._closed = threading.Event()
        self._last_said: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="spot-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cease(self) -> None:
        """Look no more, without waiting for the look that may be under way."""
        self._closed.set()

    def close(self) -> None:
        self.cease()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def look(self) -> str | None:
        """Ask once for every kind of notice; the reason to stop, if there is one."""
        for path, reason_in in _KINDS.items():
            try:
                answer = self._imds.get(path)
                reason = reason_in(answer) if answer is not None else None
            except (MetadataUnavailable, OddAnswer) as trouble:
                self._say(str(trouble))
            except Exception:
                self._say(f"Could not look at {path}.", exc_info=True)
            else:
                if reason is not None:
                    return reason
        return None

    def _run(self) -> None:
        while not self._closed.is_set():
            if reason := self.look():
                logger.warning("Notice: %s.", reason)
                self._on_notice(reason)
                return
            self._closed.wait(self._every_seconds)

    def _say(self, text: str, *, exc_info: bool = False) -> None:
        """Once for each kind of trouble, which is the sentence."""
        now = time.monotonic()
        if now - self._last_said.get(text, -math.inf) >= _SAY_AGAIN_SECONDS:
            self._last_said[text] = now
            logger.warning("%s The watch goes on.", text, exc_info=exc_info)


def _interruption(answer: str) -> str:
    notice = _fields(answer)
    action, due = notice.get("action"), notice.get("time")
    if not (isinstance(action, str) and action.isalpha() and len(action) < 20):
        raise OddAnswer("The Spot notice in the instance metadata names no action.")
    return f"spot interruption: {action} at {_moment(due)}"


def _rebalance(answer: str) -> str:
    _moment(_fields(answer).get("noticeTime"))
    return "rebalance recommendation"


def _scale_in(answer: str) -> str | None:
    return "scale-in" if answer.strip() == "Terminated" else None


def _fields(answer: str) -> dict[str, object]:
    try:
        notice = json.loads(answer)
    except (ValueError, RecursionError):
        notice = None
    if not isinstance(notice, dict):
        raise OddAnswer("The notice in the instance metadata is no JSON object.")
    return notice


def _moment(text: object) -> str:
    try:
        return datetime.fromisoformat(str(text)).isoformat()
    except ValueError:
        raise OddAnswer("The notice in the instance metadata has no time.") from None


#: Where each notice shows, the most pressing first.
_KINDS: dict[str, Callable[[str], str | None]] = {
    "spot/instance-action": _interruption,
    "autoscaling/target-lifecycle-state": _scale_in,
    "events/recommendations/rebalance": _rebalance,
}
