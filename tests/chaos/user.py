"""A person who orders, looks, cancels, changes their mind and sends files, whatever is broken.

What they were told is kept: it is what the verdict holds the system to. An order without an
answer is sent again under its key, as a good client does; now and then it is not, and nobody
ever knows what became of it.
"""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import requests

Json = dict[str, Any]

CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 6.0
PAUSE_SECONDS = (0.5, 1.4)
AGAIN_SECONDS = (0.1, 0.6)
INSIST_SECONDS = 30.0
LAST_SECONDS = 90.0
ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class Answer:
    status: int
    body: Json

    @property
    def code(self) -> str:
        return str(self.body.get("code", ""))


@dataclass
class Order:
    """One key, and every job that was named in answer to it."""

    key: str
    body: Json
    job_ids: list[str] = field(default_factory=list)
    is_refused: bool = False
    is_forgotten: bool = False  # no answer came, and nobody asked again

    @property
    def is_accepted(self) -> bool:
        return bool(self.job_ids)

    @property
    def is_open(self) -> bool:
        return not (self.is_accepted or self.is_refused or self.is_forgotten)


@dataclass(frozen=True)
class Media:
    video_id: str
    effects: tuple[str, ...]


class User:
    def __init__(self, name: str, *, url: str, random: Random, files: dict[str, Path]) -> None:
        self.name, self._url, self._random, self._files = name, url, random, files
        self._session = requests.Session()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self.user_id = self.webhook_secret = ""
        self.orders: list[Order] = []
        self.media: list[Media] = []
        self.ends: dict[str, str] = {}  # of jobs, as they were told first
        self.told: Counter[str] = Counter()  # what was answered to which call
        self.surprises: list[str] = []  # answers that nobody may ever get
        self.broke_off: BaseException | None = None

    def register(self, *, receiver_url: str) -> None:
        """Before anything is broken. Ends of jobs are to be told to the receiver."""
        person = {"email": f"{self.name}@example.com", "password": "a password of the chaos run"}
        made = self._have("/api/auth/register", person)
        self._session.headers["Authorization"] = f"Bearer {made['token']}"
        self.user_id = str(made["user"]["id"])
        told = {"url": f"{receiver_url}{self.name}", "events": [f"job.{end}" for end in ENDED]}
        self.webhook_secret = str(self._have("/api/webhook-endpoints", told)["secret"])

    def _have(self, path: str, new: Json) -> Json:
        answer = self._call("POST", path, expected=(201,), json=new)
        if answer is None:
            raise ConnectionError(f"{self.name} got no answer from {path}.")
        return answer.body

    def start(self) -> None:
        for kind in self._files:
            self._send_file(kind)
        self._thread.start()

    def begin_stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(LAST_SECONDS)

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _live(self) -> None:
        try:
            while not self._stop.wait(self._random.uniform(*PAUSE_SECONDS)):
                self._do_something()
            for order in self.orders:  # all is well again: whoever waits for an answer gets it
                if order.is_open:
                    self._insist(order)
        except BaseException as error:
            self.broke_off = error
            raise
        finally:
            self._session.close()

    def _do_something(self) -> None:
        actions = {
            self._order: 60,
            self._repeat: 9,
            self._misuse_a_key: 3,
            self._cancel: 9,
            self._look: 10,
            self._send_a_file: 5,
            self._forget_a_file: 2,
            self._delete: 2,
        }
        self._random.choices([*actions], [*actions.values()])[0]()

    # Orders

    def _order(self) -> None:
        body = self._something_to_order()
        order = Order(key=f"{self.name}-{len(self.orders)}", body=body)
        self.orders.append(order)
        if self._random.random() < 0.12:
            self._submit(order)
            order.is_forgotten = order.is_open
        else:
            self._insist(order)

    def _something_to_order(self) -> Json:
        effect = self._random.choices(
            ["colour-card", "slow-invert", "always-fails", "media"], [35, 20, 8, 37]
        )[0]
        if effect == "media" and self.media:
            chosen = self._random.choice(self.media)
            effect = self._random.choice(chosen.effects)
            return {"effect_id": effect, "video_id": chosen.video_id, "inputs": {}}
        pictures = [one for one in self.media if "thumbnail" in one.effects]
        if effect == "slow-invert" and pictures:
            seconds = round(self._random.uniform(0.5, 4), 4)
            picture = self._random.choice(pictures).video_id
            return {"effect_id": effect, "video_id": picture, "inputs": {"seconds": seconds}}
        if effect == "always-fails":
            return {"effect_id": effect, "inputs": {}}
        return {
            "effect_id": "colour-card",
            "inputs": {"colour": self._random.randrange(1 << 24), "width": 64, "height": 64},
        }

    def _insist(self, order: Order) -> None:
        """Until there is an answer. Bounded: what is left is asked again at the end."""
        until = time.monotonic() + INSIST_SECONDS
        while order.is_open and time.monotonic() < until:
            self._submit(order)
            if order.is_open:
                self._wait_a_moment()

    def _wait_a_moment(self) -> None:
        time.sleep(self._random.uniform(*AGAIN_SECONDS))

    def _submit(self, order: Order) -> None:
        answer = self._call(
            "POST",
            "/api/ai-jobs",
            expected=(201, 200, 429),
            json=order.body | {"idempotency_key": order.key},
        )
        if answer is None:
            return
        if answer.status in (200, 201):
            order.job_ids.append(answer.body["id"])
            self._note_end(answer.body)
        elif not order.is_accepted:
            order.is_refused = True

    def _repeat(self) -> None:
        if accepted := [order for order in self.orders if order.is_accepted]:
            self._submit(self._random.choice(accepted))

    def _misuse_a_key(self) -> None:
        """Another order under a key that was used: refused, and nothing happens."""
        if accepted := [order for order in self.orders if order.is_accepted]:
            key = self._random.choice(accepted).key
            other = {"effect_id": "image-scale", "inputs": {}, "idempotency_key": key}
            self._call("POST", "/api/ai-jobs", expected=(422,), json=other)

    def _some_job(self) -> str | None:
        accepted = [order.job_ids[0] for order in self.orders if order.is_accepted]
        return self._random.choice(accepted[-6:]) if accepted else None

    def _cancel(self) -> None:
        if job_id := self._some_job():
            path = f"/api/ai-jobs/{job_id}/cancel"
            if answer := self._call("POST", path, expected=(200,)):
                self._note_end(answer.body)

    def _look(self) -> None:
        if (job_id := self._some_job()) and (
            answer := self._call("GET", f"/api/ai-jobs/{job_id}", expected=(200,))
        ):
            self._note_end(answer.body)

    def _note_end(self, job: Json) -> None:
        if job["status"] in ENDED:
            first = self.ends.setdefault(job["id"], job["status"])
            if first != job["status"]:
                self.surprises.append(f"The job {job['id']} was {first}, then {job['status']}.")

    # Files

    def _send_a_file(self) -> None:
        self._send_file(self._random.choice([*self._files]))

    def _forget_a_file(self) -> None:
        """Announced, perhaps sent, and never asked for again."""
        if (announced := self._announce(self._files["image"], "image/png")) and (
            self._random.random() < 0.5
        ):
            self._put(announced["upload"], self._files["image"])

    def _send_file(self, kind: str) -> None:
        path, mime_type, effects = self._files[kind], *_TAKEN[kind]
        announced = self._announce(path, mime_type)
        if announced is None or not self._put(announced["upload"], path):
            return
        made = {"original_file_id": announced["file"]["id"], "title": path.stem}
        for _ in range(3):
            # The sweep may have taken it for forgotten: then its file is not known any more.
            answer = self._call("POST", "/api/videos", expected=(201, 404, 422), json=made)
            if answer is not None:
                if answer.status == 201:
                    self.media.append(Media(answer.body["id"], effects))
                return
            self._wait_a_moment()

    def _announce(self, path: Path, mime_type: str) -> Json | None:
        size = path.stat().st_size
        new = {"filename": path.name, "mime_type": mime_type, "size_bytes": size}
        answer = self._call("POST", "/api/videos/uploads", expected=(201,), json=new)
        return answer.body if answer else None

    def _put(self, upload: Json, path: Path) -> bool:
        try:
            answer = requests.put(
                upload["url"],
                data=path.read_bytes(),
                headers=upload["headers"],
                timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
            )
        except requests.RequestException:
            return False
        return answer.ok

    def _delete(self) -> None:
        wanted = {order.body.get("video_id") for order in self.orders if order.is_open}
        spare = [one for one in self.media[len(self._files) :] if one.video_id not in wanted]
        if spare:
            video = self._random.choice(spare)
            self.media.remove(video)
            self._call("DELETE", f"/api/videos/{video.video_id}", expected=(204, 404, 409))

    # The wire

    def _call(
        self, method: str, path: str, *, expected: tuple[int, ...], **given: Any
    ) -> Answer | None:
        """None if no answer came, or the one that something is away."""
        what = f"{method} {'/'.join(path.split('/')[:3])}"
        try:
            got = self._session.request(
                method, self._url + path, timeout=(CONNECT_SECONDS, ANSWER_SECONDS), **given
            )
            answer = Answer(got.status_code, got.json() if got.content else {})
        except (requests.RequestException, ValueError):
            self.told[f"{what}: no answer"] += 1
            return None
        self.told[f"{what}: {answer.status}"] += 1
        if answer.status == 503:
            return None
        if answer.status not in expected:
            self.surprises.append(f"{what} answered {answer.status} {answer.code}: {answer.body}")
            return None
        return answer


_TAKEN = {
    "image": ("image/png", ("image-invert", "thumbnail", "image-blur")),
    "film": ("video/mp4", ("video-invert",)),
}
