"""Instance metadata, version 2: every question carries a token, and the token is asked for.

Only the configured address is ever asked: no redirects, no proxies. Each question takes
seconds at most, whatever the other side does.
"""

import time

import requests
from urllib3.exceptions import HTTPError

_TOKEN_SECONDS = 21_600  # the longest the service allows; it says 401 when a token is over
_TIMEOUT_SECONDS = 1.0
_PAUSES_SECONDS = (0.1, 0.2, 0.4)  # before each of the three retries
_LARGEST_ANSWER_BYTES = 65_536


class MetadataUnavailable(Exception):
    """Instance metadata gave no answer that can be used."""


class Imds:
    """Safe to share between threads."""

    def __init__(self, base_url: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._latest = base_url.rstrip("/") + "/latest/"
        self._timeout_seconds = timeout_seconds
        self._token: str | None = None

    def get(self, path: str) -> str | None:
        """What meta-data/PATH says; None if there is no such thing (yet)."""
        status, text = self._ask(path)
        if status == 401:
            self._token = None
            status, text = self._ask(path)
        if status == 404:
            return None
        if status != 200:
            raise MetadataUnavailable(f"Instance metadata answers {status} for {path}.")
        return text

    def _ask(self, path: str) -> tuple[int, str]:
        token = self._token
        if token is None:
            token = self._token = self._new_token()
        return self._send("GET", f"meta-data/{path}", {"X-aws-ec2-metadata-token": token})

    def _new_token(self) -> str:
        header = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
        status, token = self._send("PUT", "api/token", header)
        if status != 200 or not (token.isascii() and token.isprintable() and token):
            raise MetadataUnavailable(f"Instance metadata gives no token (it answers {status}).")
        return token

    def _send(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        for pause_seconds in (*_PAUSES_SECONDS, None):
            try:
                status, text = self._send_once(method, path, headers)
                if status < 500 and status != 429:
                    return status, text
                trouble = f"answers {status}"
            except (requests.RequestException, HTTPError) as error:
                trouble = f"does not answer ({type(error).__name__})"
            if pause_seconds is not None:
                time.sleep(pause_seconds)
        raise MetadataUnavailable(f"Instance metadata {trouble} for {path}.")

    def _send_once(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        with requests.Session() as session:
            session.trust_env = False  # a proxy must not see the token
            response = session.request(
                method,
                self._latest + path,
                headers=headers,
                timeout=self._timeout_seconds,
                allow_redirects=False,
                stream=True,
            )
            return response.status_code, _text(response, self._timeout_seconds)


def _text(response: requests.Response, timeout_seconds: float) -> str:
    """The body, if it is short and comes in time: a socket's own timeout starts anew with
    every byte."""
    ends_at, body = time.monotonic() + timeout_seconds, b""
    while piece := response.raw.read1(_LARGEST_ANSWER_BYTES):
        body += piece
        if len(body) > _LARGEST_ANSWER_BYTES:
            raise requests.RequestException("The answer is too long.")
        if time.monotonic() > ends_at:
            raise requests.Timeout("The answer comes too slowly.")
    return body.decode(errors="replace")
