"""Keeps the Auto Scaling Group from taking this instance away while it works.

A job never waits for AWS, nor fails by it: a thread carries out the latest wish, and a wish
that was overtaken is dropped. Without protection a job may be cut short and is then requeued,
so trouble here costs time but loses nothing.
"""

import logging
import threading
import time
from typing import Any

logger = logging.getLogger(__name__)

#: Between short jobs the protection stays: AWS would throttle a fleet that changed it for each.
SETTLE_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
_FIRST_RETRY_SECONDS = 2.0
_LAST_RETRY_SECONDS = 60.0


class ScaleInProtection:
    def __init__(
        self,
        *,
        enabled: bool,
        instance_id: str,
        group: str,
        region: str = "",
        endpoint_url: str | None = None,
        retry_seconds: float = _FIRST_RETRY_SECONDS,
    ) -> None:
        self._enabled = enabled
        self._instance_id = instance_id
        self._group = group
        self._region = region
        self._endpoint_url = endpoint_url
        self._retry_seconds = retry_seconds
        self._client: Any = None
        self._changed = threading.Condition()
        self._wanted: bool | None = None
        self._wanted_from = 0.0  # time.monotonic() at which the wish is to be carried out
        self._held: bool | None = None  # what AWS has confirmed; None: nothing yet
        self._last_said = ""
        self._closing = False
        self._thread: threading.Thread | None = None

    def busy(self) -> None:
        """A job has begun. Returns at once."""
        self._want(True)

    def idle(self) -> None:
        """Nothing to do. Returns at once."""
        self._want(False, after_seconds=SETTLE_SECONDS)

    def close(self) -> None:
        """Unprotect, and wait for it a moment: whoever is terminating us does not wait long."""
        self._want(False, closing=True)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _want(self, protected: bool, *, after_seconds: float = 0.0, closing: bool = False) -> None:
        if not self._enabled:
            return
        with self._changed:
            if self._closing or (protected == self._wanted and not closing):
                return
            self._wanted = protected
            self._wanted_from = time.monotonic() + after_seconds
            self._closing = closing
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="scale-in", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        retry_seconds = self._retry_seconds
        while (wish := self._next_wish()) is not None:
            if self._carried_out(wish):
                retry_seconds = self._retry_seconds
            elif self._closing:
                return
            else:
                self._put_off(wish, retry_seconds)
                retry_seconds = min(2 * retry_seconds, _LAST_RETRY_SECONDS)

    def _next_wish(self) -> bool | None:
        """Wait for something to do; None when there will be no more."""
        with self._changed:
            while True:
                if self._wanted == self._held:
                    if self._closing:
                        return None
                    self._changed.wait()
                elif (early := self._wanted_from - time.monotonic()) > 0:
                    self._changed.wait(early)
                else:
                    return self._wanted

    def _put_off(self, wish: bool, seconds: float) -> None:
        with self._changed:
            if self._wanted == wish and not self._closing:
                self._wanted_from = time.monotonic() + seconds

    def _carried_out(self, protected: bool) -> bool:
        try:
            if self._client is None:
                self._client = self._make_client()
            self._client.set_instance_protection(
                InstanceIds=[self._instance_id],
                AutoScalingGroupName=self._group,
                ProtectedFromScaleIn=protected,
            )
        except Exception as error:  # whatever it is, the job goes on and the thread must too
            reason = " ".join(str(error).split())[:300]  # some hold a whole page
            self._say(f"Scale-in protection could not be changed: {reason}")
            self._held = None  # an answer that was lost may have been a yes
            return False
        self._held, self._last_said = protected, ""
        return True

    def _say(self, text: str) -> None:
        """Not again for every job, as long as the trouble is the same."""
        if text != self._last_said:
            self._last_said = text
            logger.warning(text)

    def _make_client(self) -> Any:
        import boto3  # only here: a worker that is not on EC2 need not pay for it
        from botocore.config import Config

        config = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 2})
        return boto3.Session().client(
            "autoscaling",
            region_name=self._region or None,
            endpoint_url=self._endpoint_url,
            config=config,
        )
