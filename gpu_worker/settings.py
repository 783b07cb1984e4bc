"""Every setting of the GPU worker: one list, read once from the environment.

A setting NAME is read from COMFYFLEET_NAME; the metadata address has the name that boto3 gave
it. What is left empty here is completed from the instance by identity.py. Secrets never show
in the text of a Settings.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from gpu_worker import logs


class BadSetting(ValueError):
    """A setting can't be used as it is; the message names it and says what would do."""


def setting(
    default: Any,
    text: str,
    *,
    secret: bool = False,
    variable: str = "",
    one_of: tuple[str, ...] = (),
) -> Any:
    metadata = {"help": text, "variable": variable, "one_of": one_of}
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class Settings:
    backend_url: str = setting("", "Address of the webapp. Required.")
    redis_url: str = setting("", "Broker of the tickets. Required.", secret=True)
    stage: str = setting(
        "", "Stage of the fleet; empty: the instance's tag Stage, without one `dev`."
    )
    fleet_slug: str = setting("", "The fleet to work for; empty: the instance's tag FleetSlug.")
    fleet_secret: str = setting(
        "", "Shown to the webapp to register. This or the parameter is required.", secret=True
    )
    fleet_secret_parameter: str = setting(
        "", "Name of the SSM parameter that holds the fleet secret."
    )
    worker_id: str = setting(
        "", "Name of this worker; empty: the instance id, off EC2 the host's name and a number."
    )

    comfyui_url: str = setting("http://127.0.0.1:8188", "The ComfyUI to drive.")
    comfyui_dir: str = setting(
        "", "Its folder, if on this machine: a job's files are removed there. Empty: they stay."
    )
    providers: str = setting("self_hosted", "What this worker can run with, separated by spaces.")

    state_dir: str = setting(
        ".state/gpu-worker", "Folder of the asset cache, temporary files and the worker's token."
    )
    cache_max_bytes: int = setting(20 * 1024**3, "Room for cached assets; the oldest go first.")

    job_seconds: float = setting(3600, "Longest run of one job.")
    stall_seconds: float = setting(300, "A running job that shows no progress so long is stuck.")
    queue_stall_seconds: float = setting(
        30, "ComfyUI is stuck if a job waits so long in it while nothing runs."
    )
    stop_seconds: float = setting(5, "The process is gone so long after a stop began.")

    spot_poll_seconds: float = setting(3, "How often instance metadata is asked for notices.")
    scale_in_protection: str = setting(
        "auto",
        "Protect the instance from scale-in while busy: on, off, or auto (on EC2).",
        one_of=("auto", "on", "off"),
    )
    asg_name: str = setting(
        "", "Auto Scaling Group of the instance; empty: asg-STAGE-FLEET_SLUG on EC2."
    )
    region: str = setting("", "AWS region; empty: the instance's, off EC2 boto3's own choice.")
    metadata_url: str = setting(
        "",
        "Address of the instance metadata, on EC2 http://169.254.169.254; empty: not on EC2.",
        variable="AWS_EC2_METADATA_SERVICE_ENDPOINT",
    )

    log_format: str = setting(
        "auto",
        "`json`: an object on each line; `text`: for people; `auto`: text on a terminal only.",
        one_of=logs.FORMS,
    )
    log_level: str = setting("info", "What is said at all, from this on.", one_of=logs.LEVELS)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, **overrides: Any) -> "Settings":
        values: dict[str, Any] = {}
        for option in fields(cls):
            text = environ.get(variable_of(option))
            if text is not None:
                values[option.name] = _parse(option, text.strip())
        return cls(**{**values, **overrides})

    def __post_init__(self) -> None:
        for option in fields(self):
            one_of, value = option.metadata["one_of"], getattr(self, option.name)
            if one_of and value not in one_of:
                raise BadSetting(
                    f"{variable_of(option)} is {value!r}; it takes {', '.join(one_of)}."
                )
        for name in ("backend_url", "comfyui_url", "metadata_url"):
            _check_http(name, getattr(self, name))

    @property
    def on_ec2(self) -> bool:
        return bool(self.metadata_url)

    @property
    def protects_from_scale_in(self) -> bool:
        return self.scale_in_protection == "on" or (
            self.scale_in_protection == "auto" and self.on_ec2
        )

    def require(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name):
                raise BadSetting(f"{variable(name)} is not set, and the worker can't do without.")


def variable_of(option: "Field[Any]") -> str:
    """The environment variable of a setting."""
    return option.metadata["variable"] or f"COMFYFLEET_{option.name.upper()}"


def variable(name: str) -> str:
    return next(variable_of(option) for option in fields(Settings) if option.name == name)


def _parse(option: "Field[Any]", text: str) -> Any:
    if option.type is str:
        return text
    try:
        number = int(text) if option.type is int else float(text)
    except ValueError:
        number = math.nan
    if not (0 < number < math.inf):
        raise BadSetting(f"{variable_of(option)} is {text!r}; it takes a number above 0.")
    return number


def _check_http(name: str, url: str) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        good = False
    if not good:
        raise BadSetting(f"{variable(name)} is {url!r}; it takes an address as http://HOST:PORT.")
