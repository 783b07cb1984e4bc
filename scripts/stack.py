"""What a stack on one machine consists of: its addresses, its settings and its parts.

A GPU worker gets its own small environment: the address of the API, the broker and its fleet's
secret. It never sees the databases, the storage or the key that signs URLs.
"""

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from models.settings import Settings
from scripts import servers
from scripts.state_folder import StateFolder

HOST = "127.0.0.1"
FLEET = "gpu-default"  # of the demo catalog
STAND_IN_NODES = ["SlowImage", "EmitOutputs", "HangForever"]  # that no ComfyUI has
MOST_UNDER_THE_LIMIT = 5  # GPU workers for which the usual limit of registrations will do

#: Whoever tries webhooks here has the receiver on this machine too. Nobody else can call the API.
LOOPBACK_RECEIVERS = {
    "COMFYFLEET_WEBHOOK_HTTP": "on",
    "COMFYFLEET_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8 ::1/128",
}

#: What of our own environment a GPU worker must not inherit.
KEPT_FROM_WORKERS = {f"COMFYFLEET_{option.name.upper()}" for option in fields(Settings)} | {
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
}


class PortTaken(RuntimeError):
    """A port that was asked for can't be had."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The options of `comfyfleet up`. None leaves the choice to us."""

    port: int = 8000  # 0: any
    redis_port: int | None = None
    comfyui_port: int | None = None  # of the first stand-in; the others follow
    flower_port: int | None = None
    gpu_workers: int = 1
    with_flower: bool = False
    is_verbose: bool = False
    comfyui_url: str | None = None
    database_url: str | None = None
    pool_url: str | None = None
    redis_url: str | None = None
    storage_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ports:
    web: int
    redis: int
    imds: int
    flower: int
    comfyui: list[int]


def choose_ports(wishes: Wishes) -> Ports:
    """Free ports for all. Those that were asked for have to be free, or it is said which."""
    first = wishes.comfyui_port or 0
    asked = {
        "--port": [wishes.port],
        "--redis-port": [wishes.redis_port or 0],
        "--flower-port": [wishes.flower_port or 0],
        "--comfyui-port": [first + number if first else 0 for number in range(wishes.gpu_workers)],
        "": [0],
    }
    with ExitStack() as held:  # all at once, so that no two are the same
        found = {
            option: [_hold(held, port, option) for port in ports] for option, ports in asked.items()
        }
    return Ports(
        web=found["--port"][0],
        redis=found["--redis-port"][0],
        flower=found["--flower-port"][0],
        comfyui=found["--comfyui-port"],
        imds=found[""][0],
    )


def _hold(held: ExitStack, port: int, option: str) -> int:
    probe = held.enter_context(socket.socket())
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
    except OSError as error:
        raise PortTaken(
            f"Port {port} can't be had ({error.strerror}): another program may have taken it. "
            f"Stop that one, or choose another port with {option}; {option} 0 takes a free one."
        ) from error
    chosen: int = probe.getsockname()[1]
    return chosen


def rate_limits(gpu_workers: int) -> str:
    """The usual ones, but many workers on one machine share an address: each may register twice."""
    limits = dict(word.split("=") for word in Settings.rate_limits.split())
    if gpu_workers > MOST_UNDER_THE_LIMIT:
        limits["register"] = f"{2 * gpu_workers}/minute"
    return " ".join(f"{kind}={limit}" for kind, limit in limits.items())


def log_form() -> dict[str, str]:
    """JSON, for the files; the screen makes lines for people of it (log_lines.py)."""
    return {"COMFYFLEET_LOG_FORMAT": os.environ.get("COMFYFLEET_LOG_FORMAT", "json")}


def allowed_nodes(wishes: Wishes) -> str:
    """The usual ones; of the stand-in also its own, or nobody could upload the demo's graphs."""
    own = [] if wishes.comfyui_url else STAND_IN_NODES
    return ", ".join([Settings.allowed_nodes, *own])


@dataclass(frozen=True, kw_only=True)
class Stack:
    state: StateFolder
    wishes: Wishes
    ports: Ports
    secrets: dict[str, str]

    @property
    def api_url(self) -> str:
        return f"http://{HOST}:{self.ports.web}"

    @property
    def redis_url(self) -> str:
        own = servers.redis_url(self.ports.redis, self.secrets["redis_password"])
        return self.wishes.redis_url or own

    @property
    def flower_url(self) -> str | None:
        return f"http://{HOST}:{self.ports.flower}" if self.wishes.with_flower else None

    @property
    def imds_url(self) -> str:
        return f"http://{HOST}:{self.ports.imds}"

    @property
    def worker_names(self) -> list[str]:
        return [f"local-{number}" for number in range(1, self.wishes.gpu_workers + 1)]

    def comfyui_url(self, number: int) -> str:
        """Of the GPU worker with this number, from 0."""
        return self.wishes.comfyui_url or f"http://{HOST}:{self.ports.comfyui[number]}"

    def comfyui_folder(self, number: int) -> Path:
        return self.state.path / f"comfyui-{number + 1}"

    def backend_settings(self) -> dict[str, str]:
        """The settings of the backend as variables; the rest is as the caller has it."""
        folder, wishes = self.state.path, self.wishes
        inherited = {
            name: value for name, value in os.environ.items() if name.startswith("COMFYFLEET_")
        }
        return (
            {
                "COMFYFLEET_RATE_LIMITS": rate_limits(wishes.gpu_workers),
                "COMFYFLEET_ALLOWED_NODES": allowed_nodes(wishes),
            }
            | LOOPBACK_RECEIVERS
            | inherited
            | {
                "COMFYFLEET_CENTRAL_URL": wishes.database_url or f"sqlite:///{folder}/central.db",
                "COMFYFLEET_POOL_URLS": f"main={wishes.pool_url or f'sqlite:///{folder}/main.db'}",
                "COMFYFLEET_REDIS_URL": self.redis_url,
                "COMFYFLEET_STORAGE_URL": wishes.storage_url or f"file://{folder}/objects",
                "COMFYFLEET_PUBLIC_URL": self.api_url,
                "COMFYFLEET_SECRET_KEY": self.secrets["secret_key"],
                "COMFYFLEET_FLEET_SECRETS": self.secrets["fleet_secret"],
            }
        )

    @property
    def settings(self) -> Settings:
        return Settings.from_env(self.backend_settings())

    def backend_environment(self) -> dict[str, str]:
        return {**os.environ, **self.backend_settings(), **log_form(), "PYTHONUNBUFFERED": "1"}

    def worker_environment(self, number: int) -> dict[str, str]:
        name = self.worker_names[number]
        own = {
            "COMFYFLEET_BACKEND_URL": self.api_url,
            "COMFYFLEET_REDIS_URL": self.redis_url,
            "COMFYFLEET_STAGE": self.settings.stage,
            "COMFYFLEET_FLEET_SLUG": FLEET,
            "COMFYFLEET_FLEET_SECRET": self.secrets["fleet_secret"],
            "COMFYFLEET_WORKER_ID": name,
            "COMFYFLEET_COMFYUI_URL": self.comfyui_url(number),
            "COMFYFLEET_STATE_DIR": str(self.state.path / f"gpu-{number + 1}"),
            "COMFYFLEET_STOP_SECONDS": "3.5",  # within what the supervisor grants
            "COMFYFLEET_SCALE_IN_PROTECTION": "off",
            "COMFYFLEET_LOG_LEVEL": self.settings.log_level,
            **log_form(),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{self.imds_url}/i/{name}/",
            "PYTHONUNBUFFERED": "1",
        }
        if not self.wishes.comfyui_url:
            own["COMFYFLEET_COMFYUI_DIR"] = str(self.comfyui_folder(number))
        inherited = {k: v for k, v in os.environ.items() if k not in KEPT_FROM_WORKERS}
        return inherited | own

    def machines_document(self) -> dict[str, Any]:
        """Each GPU worker's ComfyUI, and where to send it the notices of its instance."""
        return {
            name: {
                "comfyui_url": self.comfyui_url(number),
                "notices_url": f"{self.imds_url}/control/{name}/notices",
            }
            for number, name in enumerate(self.worker_names)
        }

    def ready_document(self, *, console_url: str | None, studio_url: str | None) -> dict[str, Any]:
        return {
            "api_url": self.api_url,
            "console_url": console_url,
            "studio_url": studio_url,
            "flower_url": self.flower_url,
            "comfyui_url": self.comfyui_url(0),
            "redis_url": self.redis_url,
            "fleet_slug": FLEET,
            "stage": self.settings.stage,
            "admin_token": self.secrets["admin_token"],
            "demo_user": {
                "email": self.secrets["demo_email"],
                "password": self.secrets["demo_password"],
            },
            "fleet_secret": self.secrets["fleet_secret"],
        }
