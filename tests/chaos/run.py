"""One chaos run, from its seed to its verdict."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from celery import Celery
from sqlalchemy.exc import SQLAlchemyError

from scripts import demo_media
from scripts.supervisor import StopRequest
from tasks import money, tickets
from tests.chaos import faults, leftovers, messages, receiver, verdict
from tests.chaos.receiver import Json
from tests.chaos.town import Interrupted, Town
from tests.chaos.trouble import Done, Troublemaker
from tests.chaos.user import User
from tests.chaos.verdict import Finding, Rows

USERS = 4
TOKENS = 1_000_000
WARM_UP_SECONDS = 3.0
TICK_SECONDS = 0.05
LOOK_SECONDS = 2.0
CALM_SECONDS = 150.0  # for what only takes time
VERIFY_SECONDS = 60.0
SWEEPS = ("tasks.sweep", "tasks.sweep_leftovers")  # all others come soon by themselves


@dataclass
class Outcome:
    seed: int
    wanted: int  # faults
    done: list[Done]
    users: list[User]
    findings: list[Finding] = field(default_factory=list)
    rows: Rows | None = None
    heard: list[Json] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


class Run:
    def __init__(self, town: Town, *, seed: int, wanted: int, stop_request: StopRequest) -> None:
        self.town = town
        self._stop_request = stop_request
        self._trouble = Troublemaker(town, list(faults.drawn(seed, faults=wanted)))
        self.outcome = Outcome(
            seed=seed, wanted=wanted, done=self._trouble.done, users=self._people(seed)
        )

    def perform(self) -> Outcome:
        self._step("begin", self._let_people_in)
        self._step("faults", self._make_trouble)
        self._step("answers", self._await_answers)
        self._step("calm", self._await_calm)
        return self.outcome

    def _step(self, name: str, step: Callable[[], None]) -> None:
        begin = time.monotonic()
        step()
        self.outcome.seconds[name] = time.monotonic() - begin

    def _people(self, seed: int) -> list[User]:
        inputs = self.town.state.folder("inputs")
        files = {"image": inputs / "night.png", "film": inputs / "film.mp4"}
        demo_media.draw_picture(files["image"])
        demo_media.shoot_film(files["film"])
        return [
            User(name, url=self.town.public_url, random=Random(f"{seed} {name}"), files=files)
            for name in (f"user-{number}" for number in range(1, USERS + 1))
        ]

    def _let_people_in(self) -> None:
        for user in self.outcome.users:
            user.register(receiver_url=self.town.receiver_url)
            money.credit(
                self.town.backend,
                user_id=UUID(user.user_id),
                amount=TOKENS,
                provider_transaction_id=f"chaos:{user.user_id}",
                note=None,
                actor="chaos",
            )
            user.start()
        self._tick_while(lambda: True, seconds=WARM_UP_SECONDS)

    def _make_trouble(self) -> None:
        trouble = self._trouble
        trouble.start()

        def goes_on() -> bool:
            trouble.tick()
            return trouble.has_more

        self._tick_while(goes_on)
        trouble.stop()

    def _await_answers(self) -> None:
        """Nobody orders any more; those who wait for an answer get one."""
        users = self.outcome.users
        for user in users:
            user.begin_stop()
        self._tick_while(lambda: any(not user.is_done for user in users), seconds=CALM_SECONDS)

    def _await_calm(self) -> None:
        """What only takes time gets it; then everything is looked at."""
        until = time.monotonic() + CALM_SECONDS
        while self._takes_time() and time.monotonic() < until:
            self._tick_while(lambda: True, seconds=LOOK_SECONDS)
        self.outcome.rows = Rows.read(self.town.backend)
        self.outcome.findings = [*self._takes_time(), *self._stands(self.outcome.rows)]

    def _takes_time(self) -> list[Finding]:
        """What is not as it shall be, but may still become so."""
        backend, state = self.town.backend, self.town.state.path
        try:
            rows = Rows.read(backend)
            if open_jobs := list(verdict.unrest(rows)):
                return open_jobs
            heard = self.outcome.heard = receiver.heard(self.town.heard)
            found = [
                *messages.about_what_was_heard(rows, self.outcome.users, heard),
                *messages.about_deliveries(backend),
                *leftovers.about_objects(backend, state / "objects"),
                *leftovers.about_uploads(backend),
                *leftovers.about_folders(state),
            ]
        except SQLAlchemyError as error:
            return [Finding(f"A database does not answer: {error}")]
        if found:
            self._sweep()
        return found

    def _stands(self, rows: Rows) -> list[Finding]:
        """What no time makes better."""
        return [
            *verdict.about_ledger(self.town.backend),
            *verdict.about_bookings(rows),
            *verdict.about_dispatches(rows),
            *verdict.about_results(rows),
            *verdict.about_failures(rows),
            *verdict.about_logs(self.town.state.logs),
            *verdict.about_promises(rows, self.outcome.users),
            *self._ledger_verify(),
        ]

    def _sweep(self) -> None:
        """Now, and not when it would be due: the control worker does it, as ever."""
        with (
            Celery(broker=self.town.stack.redis_url, set_as_current=False) as celery,
            celery.connection_for_write() as connection,
        ):
            for task in SWEEPS:
                celery.send_task(task, queue=tickets.CONTROL_QUEUE, connection=connection)

    def _ledger_verify(self) -> list[Finding]:
        """What the command tells the people who run this."""
        told = subprocess.run(
            [sys.executable, "-m", "scripts.cli", "ledger", "verify"],
            env=os.environ | self.town.environment,
            capture_output=True,
            text=True,
            timeout=VERIFY_SECONDS,
        )
        if told.returncode == 0:
            return []
        return [Finding(f"`comfyfleet ledger verify` says: {told.stdout}{told.stderr}")]

    def _tick_while(self, goes_on: Callable[[], bool], *, seconds: float = float("inf")) -> None:
        until = time.monotonic() + seconds
        while goes_on() and time.monotonic() < until:
            if self._stop_request.is_set:
                raise Interrupted
            self.town.tick()
            time.sleep(TICK_SECONDS)
