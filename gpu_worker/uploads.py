"""Brings what a job made into storage, with signed addresses and nothing else.

One output of the expected type goes to the address that came with the lease. All others get
addresses of their own, which pin type and length. An address may have run out during a long
job, and storage may be away for a minute: both are tried again.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import requests

from gpu_worker.backend import Refused, Unreachable
from gpu_worker.insistence import Insistence
from gpu_worker.lease_keeper import Held, LeaseKeeper
from gpu_worker.patience import Patience
from gpu_worker.provider import JobFailed, OutputFile, Stopped, Unwell

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 300.0
_CONNECT_SECONDS, _SEND_SECONDS = 5.0, 120.0


@dataclass(frozen=True)
class Address:
    url: str
    headers: dict[str, str]


class Uploads:
    def __init__(self, keeper: LeaseKeeper, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._keeper = keeper
        self._patience_seconds = patience_seconds
        self._session = requests.Session()
        self._session.trust_env = False

    def send(
        self, held: Held, files: list[OutputFile], *, patience: Patience
    ) -> list[dict[str, Any]]:
        """Upload all of them, as long as the job may go on; returns what the report says of
        each."""
        described = [_describe(file) for file in files]
        seconds = min(self._patience_seconds, patience.left_seconds)
        insistence = Insistence(seconds=seconds, stop=held.stop)
        waiting = list(range(len(files)))
        while waiting:
            patience.check()
            addresses = self._addresses(held, described)
            if addresses is not None:
                waiting = [
                    number
                    for number in waiting
                    if not self._put(files[number], addresses[number], patience)
                ]
            if waiting and not insistence.pause():
                patience.check()
                raise Unwell("The results could not be uploaded.")
        return described

    def _addresses(self, held: Held, described: list[dict[str, Any]]) -> list[Address] | None:
        """Where each output goes; None if the webapp can't be asked right now."""
        only_type = held.output_headers.get("Content-Type")
        if len(described) == 1 and described[0]["mime_type"] == only_type:
            return [Address(held.output_url, held.output_headers)]
        try:
            answered = self._keeper.ask_uploads(held, described)
        except Unreachable as away:
            logger.warning("No addresses for the results yet: %s", away)
            return None
        except Refused as refused:
            if refused.status != 422:
                raise
            raise JobFailed(f"The results can't be stored: {refused.detail}") from refused
        if held.stop.is_set():  # then there are no addresses in the answer
            raise Stopped("The job was stopped before its results were uploaded.")
        by_name = {one["name"]: Address(one["url"], one["headers"]) for one in answered}
        return [by_name[output["name"]] for output in described]

    def _put(self, file: OutputFile, address: Address, patience: Patience) -> bool:
        """False: another try may go better, with a fresh address."""
        try:
            with file.path.open("rb") as content:
                response = self._session.put(
                    address.url,
                    data=Stoppable(content, patience.check),
                    headers=address.headers,
                    timeout=(_CONNECT_SECONDS, _SEND_SECONDS),
                    allow_redirects=False,
                )
        except requests.RequestException as error:
            logger.warning("Storage is away: %s", type(error).__name__)
            return False
        if response.status_code // 100 == 2:
            return True
        self._keeper.nudge()  # the address may have run out: the next heartbeat brings another
        logger.warning("Storage refused %s with status %d.", file.name, response.status_code)
        return False


class Stoppable:
    """A file on its way out; `check` may raise to stop it in the middle."""

    def __init__(self, content: BinaryIO, check: Callable[[], None]) -> None:
        self._content, self._check = content, check

    def __len__(self) -> int:
        return os.fstat(self._content.fileno()).st_size

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._content.read(size)


def _describe(file: OutputFile) -> dict[str, Any]:
    digest = hashlib.sha256()
    with file.path.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return {
        "name": file.name,
        "mime_type": file.mime_type,
        "size_bytes": file.path.stat().st_size,
        "sha256": digest.hexdigest(),
    }
