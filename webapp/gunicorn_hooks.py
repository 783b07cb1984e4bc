"""What gunicorn calls; `comfyfleet serve` names this file as its configuration."""

import resource
from typing import Any

from models import spans
from webapp.access_log import Logger

logger_class = Logger


def on_starting(_server: Any) -> None:
    spans.say_obstacle()


def post_fork(_server: Any, _worker: Any) -> None:
    spans.begin("comfyfleet-web")
    # Each event stream is an open file: as many as the machine grants, not the usual 1024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def on_exit(_server: Any) -> None:
    """What its processes counted was this server's."""
    from webapp import shared_counts

    shared_counts.remove_folder()


def worker_exit(_server: Any, _worker: Any) -> None:
    """A worker that stops sends its last tickets first."""
    from webapp.wsgi import app

    app.extensions["comfyfleet"].close()
    spans.end()
