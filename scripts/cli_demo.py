"""`comfyfleet demo`: an image and a short video through everything, told as it happens."""

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scripts.command import clear_errors

if TYPE_CHECKING:
    from scripts.demo_customer import Customer
    from scripts.state_folder import StateFolder

JOB_SECONDS = 90.0
POLL_SECONDS = 0.1
TOP_UP_TOKENS = 1000
EFFECTS = {"image-invert": "image/png", "video-invert": "video/mp4"}


@click.command()
@click.option("--state", default=".state/demo", show_default=True, help="Folder of the stack.")
@click.option("--keep", is_flag=True, help="Leave the stack running at the end, until Ctrl-C.")
@clear_errors
def demo(state: str, keep: bool) -> None:
    """Start a stack, send one image and one video through it, and show what happened.

    Exit code 0 means that all of it was seen: both results are the negatives of what was sent,
    each job was paid for once, and everything stopped.
    """
    from requests import RequestException

    from scripts import demo_stack
    from scripts.demo_customer import CallFailed
    from scripts.demo_media import NotInverted
    from scripts.state_folder import StateFolder

    folder = StateFolder(Path(state))
    try:
        with demo_stack.running(folder, options=["--port", "0"]) as ready:
            _perform(folder, ready)
            if keep:
                _wait_for_ctrl_c(ready)
    except (demo_stack.StackFailed, NotInverted) as failed:
        _give_up(str(failed))
    except (JobFailed, CallFailed, RequestException) as failed:
        _give_up(f"{failed}\n{demo_stack.tail(folder)}")
    except KeyboardInterrupt:
        _give_up("Interrupted; the stack is stopped.")
    click.secho("\nStopped. All of it worked.", fg="green")


class JobFailed(RuntimeError):
    """A job did not complete; the message says what became of it."""


def _give_up(sentence: str) -> None:
    click.secho(f"\n{sentence}", fg="red", err=True)
    sys.exit(1)


def _perform(state: "StateFolder", ready: dict[str, Any]) -> None:
    from scripts import demo_media
    from scripts.demo_customer import Customer

    sent = {effect: state.folder("inputs") / name for effect, name in _names().items()}
    demo_media.draw_picture(sent["image-invert"])
    demo_media.shoot_film(sent["video-invert"])
    with Customer(ready["api_url"]) as customer:
        user = customer.sign_in(**ready["demo_user"])
        _top_up(customer, user["id"], ready)
        before = customer.balance()
        click.echo(f"Signed in as {user['email']}, {before} tokens.\n")
        videos = {effect: _send(customer, effect, path) for effect, path in sent.items()}
        ordered = {effect: customer.order(effect, video) for effect, video in videos.items()}
        click.echo()
        seen = _watch(customer, ordered)
        _tell(state, customer, ordered, seen, before)
        _fetch(state, customer, ordered, sent)


def _send(customer: "Customer", effect: str, path: Path) -> str:
    video = customer.send(path, EFFECTS[effect])
    click.echo(f"Sent {path.name}, {path.stat().st_size} bytes.")
    return str(video["id"])


def _names() -> dict[str, str]:
    return {"image-invert": "night.png", "video-invert": "moon.mp4"}


def _top_up(customer: "Customer", user_id: str, ready: dict[str, Any]) -> None:
    """After many demos the wallet is empty; an administrator books a payment."""
    from scripts.demo_customer import Customer

    balance = customer.balance()
    if balance >= sum(customer.price(effect) for effect in EFFECTS):
        return
    with Customer(ready["api_url"]) as admin:
        admin.token = ready["admin_token"]
        payment = {"amount": TOP_UP_TOKENS, "provider_transaction_id": f"demo:{time.time_ns()}"}
        admin.call("POST", f"/api/admin/wallets/{user_id}/credit", json=payment)


def _watch(customer: "Customer", ordered: dict[str, Any]) -> dict[str, list[Any]]:
    """Draw the progress until every job has ended; updates `ordered`, returns what was seen."""
    from datetime import UTC, datetime

    from scripts.demo_progress import Bar, ProgressBars
    from scripts.demo_story import Moment

    bars, deadline = ProgressBars(), time.monotonic() + JOB_SECONDS
    seen: dict[str, list[Any]] = {effect: [] for effect in ordered}
    while True:
        for effect, job in ordered.items():
            now = customer.job(job["id"])
            if 0 < now["progress"] < 1 and now["progress"] != job["progress"]:
                seen[effect].append(Moment(datetime.now(UTC), f"at {now['progress']:.0%}"))
            ordered[effect] = now
        bars.draw([Bar(name, job["status"], job["progress"]) for name, job in ordered.items()])
        open_jobs = [job for job in ordered.values() if not _has_ended(job)]
        if not open_jobs:
            return seen
        if time.monotonic() > deadline:
            raise JobFailed(f"After {JOB_SECONDS:.0f} s a job is still {open_jobs[0]['status']}.")
        time.sleep(POLL_SECONDS)


def _has_ended(job: dict[str, Any]) -> bool:
    if job["status"] in ("failed", "cancelled"):
        reason = job["error"]["message"] if job["error"] else "no reason given"
        raise JobFailed(f"{job['effect']} {job['status']}: {reason}")
    return bool(job["status"] == "completed")


def _tell(
    state: "StateFolder",
    customer: "Customer",
    ordered: dict[str, Any],
    seen: dict[str, list[Any]],
    before: int,
) -> None:
    from models.session import Databases
    from models.settings import Settings
    from scripts import demo_story

    databases = Databases(Settings.from_env(state.read_environment()))
    for effect, job in ordered.items():
        click.secho(f"\nWhat happened to {effect}", bold=True)
        told = demo_story.moments(databases, job, seen[effect])
        click.echo("\n".join(demo_story.lines(told)))
    databases.close()
    names = {job["id"]: effect for effect, job in ordered.items()}
    after = customer.balance()
    booked = [entry for entry in customer.transactions() if entry["job_id"] in names]
    click.secho("\nThe ledger", bold=True)
    click.echo("\n".join(demo_story.ledger_lines(before, after, booked, names)))
    price = sum(job["price_tokens"] for job in ordered.values())
    types = sorted(entry["type"] for entry in booked)
    if before - after != price or types != ["JOB_CONSUME"] * 2 + ["JOB_RESERVE"] * 2:
        raise JobFailed(f"The ledger is wrong: {price} tokens were due, {before - after} are gone.")


def _fetch(
    state: "StateFolder", customer: "Customer", ordered: dict[str, Any], sent: dict[str, Path]
) -> None:
    from scripts import demo_media

    checks = {"image-invert": demo_media.check_picture, "video-invert": demo_media.check_film}
    shutil.rmtree(state.path / "outputs", ignore_errors=True)
    click.secho("\nThe results", bold=True)
    for effect, job in ordered.items():
        if len(job["outputs"]) != 1:
            raise JobFailed(f"{effect} completed with {len(job['outputs'])} results, not one.")
        [output] = job["outputs"]
        path = state.folder("outputs") / f"{effect}{Path(output['name']).suffix}"
        customer.download(output["url"], path)
        click.echo(f"  {path}\n    {checks[effect](sent[effect], path)}")


def _wait_for_ctrl_c(ready: dict[str, Any]) -> None:
    click.echo(f"\nThe stack goes on at {ready['api_url']}. Ctrl-C stops it.")
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        click.echo()
