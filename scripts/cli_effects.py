"""`comfyfleet effects …`."""

import json
from typing import TYPE_CHECKING, Any

import click

from scripts.command import clear_errors, opened_backend, show, with_json
from scripts.table import table

if TYPE_CHECKING:
    from models.effects import Effect
    from tasks.backend import Backend

HEADINGS = ["effect", "name", "tokens", "workflow", "provider", "fixed", "problem"]
PROVIDER = click.Choice(["self_hosted", "cloud", "runpod"])
OVERRIDE = "NAME=VALUE: a property that the effect fixes. VALUE is JSON, or a text. Repeatable."


@click.group()
def effects() -> None:
    """Effects: what users choose, and what it costs."""


@effects.command("list")
@with_json
@clear_errors
def list_effects(as_json: bool) -> None:
    """List all effects, and why nobody can order one."""
    from models.effects import Effect, everything
    from tasks.catalog_view import effects_shown

    with opened_backend() as backend, backend.databases.central(read_only=True) as session:
        found = session.scalars(everything().order_by(Effect.slug)).all()
        told = [one.told() for one in effects_shown(backend, session, found)]
    show(as_json, told, table(HEADINGS, [_row(one) for one in told]))


def _row(told: dict[str, Any]) -> list[object]:
    fixed = ", ".join(f"{name}={value}" for name, value in told["overrides"].items())
    plain = [told[name] for name in ("slug", "name", "credits_cost", "workflow", "provider")]
    return [*plain, fixed or None, told["problem"]]


@effects.command()
@click.argument("slug")
@click.option("--workflow", required=True, help="The slug of what it runs.")
@click.option("--cost", type=int, required=True, help="Its price in tokens.")
@click.option("--name", help="Shown to users; default: the slug.")
@click.option("--description", default="", help="Shown to users.")
@click.option("--override", "overrides", multiple=True, help=OVERRIDE)
@click.option("--provider", type=PROVIDER, default="self_hosted", show_default=True)
@with_json
@clear_errors
def create(
    slug: str,
    cost: int,
    name: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Offer a new effect SLUG."""
    from tasks import catalog

    given |= {"credits_cost": cost, "name": name or slug, "overrides": _parsed(overrides)}
    with opened_backend() as backend:
        effect = catalog.create_effect(backend, slug=slug, actor="cli", **given)
        _tell(backend, effect, as_json, "is new")


@effects.command("set")
@click.argument("slug")
@click.option("--workflow", help="Run this one from now on.")
@click.option("--cost", type=int, help="Another price. What is ordered keeps its own.")
@click.option("--name", help="Shown to users.")
@click.option("--description", help="Shown to users.")
@click.option("--override", "overrides", multiple=True, help=f"{OVERRIDE} All others are dropped.")
@click.option("--no-overrides", is_flag=True, help="Fix nothing.")
@click.option("--provider", type=PROVIDER)
@click.option("--on/--off", "is_active", default=None, help="Put it on offer, or take it away.")
@with_json
@clear_errors
def set_effect(
    slug: str,
    cost: int | None,
    overrides: tuple[str, ...],
    no_overrides: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Change the effect SLUG. What was ordered stays as it is."""
    from tasks import catalog

    if overrides and no_overrides:
        raise click.UsageError("--override and --no-overrides contradict each other.")
    if overrides or no_overrides:
        given["overrides"] = _parsed(overrides)
    wanted = {name: value for name, value in given.items() if value is not None}
    if cost is not None:
        wanted["credits_cost"] = cost
    if not wanted:
        raise click.UsageError("Say what to change; --help lists what can be.")
    with opened_backend() as backend:
        effect = catalog.change_effect(backend, slug, actor="cli", **wanted)
        _tell(backend, effect, as_json, "is changed")


def _parsed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return dict(_override(one) for one in overrides)


def _override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.UsageError(f"--override {text!r} is not of the form NAME=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _tell(backend: "Backend", effect: "Effect", as_json: bool, what: str) -> None:
    from tasks.catalog_view import effects_shown

    with backend.databases.central(read_only=True) as session:
        [shown] = effects_shown(backend, session, [effect])
    problem = f" Nobody can order it: {shown.problem}" if shown.problem else ""
    sentence = f"The effect {effect.slug} {what}; it costs {effect.credits_cost} tokens.{problem}"
    show(as_json, shown.told(), sentence)
