"""A customer of the API: knows its address and a password, and nothing else of ours."""

from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import requests

Json = dict[str, Any]
CALL_SECONDS = 30


class CallFailed(RuntimeError):
    """The API did not answer as it should; the message says what it said."""


class Customer:
    def __init__(self, api_url: str) -> None:
        self._api_url = api_url
        self._session = requests.Session()

    def __enter__(self) -> "Customer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()

    def sign_in(self, *, email: str, password: str) -> Json:
        made = self.call("POST", "/api/auth/login", json={"email": email, "password": password})
        self.token = made["token"]
        user: Json = made["user"]
        return user

    @property
    def token(self) -> str:
        return str(self._session.headers["Authorization"]).removeprefix("Bearer ")

    @token.setter
    def token(self, token: str) -> None:
        self._session.headers["Authorization"] = f"Bearer {token}"

    def send(self, path: Path, mime_type: str) -> Json:
        """Upload a file; returns the video (or image) made of it."""
        body = path.read_bytes()
        new = {"filename": path.name, "mime_type": mime_type, "size_bytes": len(body)}
        announced = self.call("POST", "/api/videos/uploads", json=new)
        target = announced["upload"]
        self._answer(
            requests.put(target["url"], data=body, headers=target["headers"], timeout=CALL_SECONDS)
        )
        made = {"original_file_id": announced["file"]["id"], "title": path.stem}
        return self.call("POST", "/api/videos", json=made)

    def order(self, effect: str, video_id: str | None = None, **inputs: Any) -> Json:
        new = {"effect_id": effect, "video_id": video_id, "inputs": inputs}
        return self.call("POST", "/api/ai-jobs", json=new | {"idempotency_key": uuid4().hex})

    def job(self, job_id: str) -> Json:
        return self.call("GET", f"/api/ai-jobs/{job_id}")

    def price(self, effect: str) -> int:
        return int(self.call("GET", f"/api/effects/{effect}")["credits_cost"])

    def balance(self) -> int:
        return int(self.call("GET", "/api/wallet")["balance"])

    def transactions(self) -> list[Json]:
        """The newest, newest first."""
        items: list[Json] = self.call("GET", "/api/wallet/transactions")["items"]
        return items

    def download(self, url: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._answer(requests.get(url, timeout=CALL_SECONDS)).content)

    def call(self, method: str, path: str, **given: Any) -> Json:
        answer = self._session.request(method, self._api_url + path, timeout=CALL_SECONDS, **given)
        body: Json = self._answer(answer).json()
        return body

    def _answer(self, answer: requests.Response) -> requests.Response:
        if not answer.ok:
            raise CallFailed(
                f"{answer.request.method} {answer.url.partition('?')[0]} answered "
                f"{answer.status_code}: {answer.text[:300]}"
            )
        return answer
