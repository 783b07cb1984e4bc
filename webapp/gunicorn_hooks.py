"""What gunicorn calls; `comfyfleet serve` names this file as its configuration."""

from typing import Any


def worker_exit(_server: Any, _worker: Any) -> None:
    """A worker that stops sends its last tickets first."""
    from webapp.wsgi import app

    app.extensions["comfyfleet"].close()
