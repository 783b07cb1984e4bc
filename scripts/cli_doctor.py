"""`comfyfleet doctor`: what is wrong, in plain words."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scripts.command import clear_errors, show, with_json

if TYPE_CHECKING:
    from scripts.doctor_checks import Finding, Patient

DEFAULT_STATE = ".state/up"


@click.command()
@click.option("--state", help=f"Folder of a stack on this machine; default: {DEFAULT_STATE}.")
@click.option("--comfyui", "comfyui_url", help="A ComfyUI to look at; default: that of the stack.")
@with_json
@clear_errors
def doctor(state: str | None, comfyui_url: str | None, as_json: bool) -> None:
    """Look at every part and say what is wrong and what to do.

    Looks at the stack of `comfyfleet up`, if there is one, else at what the environment
    describes. Exit code 1 if anything is bad.
    """
    from scripts.doctor_checks import examine

    patient, described = _patient(state, comfyui_url)
    if not as_json:
        click.echo(f"Looking at {described}.")
    findings = []
    for finding in examine(patient):
        findings.append(finding)
        if not as_json:
            click.echo(_line(finding))
    patient.databases.close()
    bad = [finding for finding in findings if not finding.is_ok]
    verdict = f"{len(bad)} of {len(findings)} checks are bad." if bad else "All is well."
    show(as_json, {"ok": not bad, "checks": [vars(one) for one in findings]}, verdict)
    sys.exit(1 if bad else 0)


def _line(finding: "Finding") -> str:
    mark = click.style("ok ", fg="green") if finding.is_ok else click.style("BAD", fg="red")
    return f"{mark}  {finding.check + ':':<12} {finding.sentence}"


def _patient(state: str | None, comfyui_url: str | None) -> "tuple[Patient, str]":
    from models.session import Databases
    from models.settings import Settings
    from scripts.doctor_checks import Patient
    from scripts.state_folder import StateFolder

    folder = StateFolder(Path(state or DEFAULT_STATE))
    known = folder.read_environment()
    if state and not known:
        raise click.UsageError(f"There is no stack in {folder.path}: `comfyfleet up` makes one.")
    settings = Settings.from_env({**os.environ, **known})
    ready = folder.read_ready() or {}
    rests = "" if folder.is_in_use() else ", which does not run at the moment"
    described = f"the stack in {folder.path}{rests}" if known else "what the environment describes"
    patient = Patient(
        settings=settings,
        databases=Databases(settings),
        comfyui_url=comfyui_url or ready.get("comfyui_url"),
    )
    return patient, described
