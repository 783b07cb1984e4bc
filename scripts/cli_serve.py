"""`comfyfleet serve`: the web application behind gunicorn."""

import os
import resource
import sys

import click

from scripts.command import clear_errors

MOST_CONNECTIONS = 10_000


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@click.option("--workers", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--threads", default=4, show_default=True, type=click.IntRange(min=1))
@clear_errors
def serve(host: str, port: int, workers: int, threads: int) -> None:
    """Serve the API until stopped. Refuses to start on a schema that is not current."""
    from webapp import create_app, shared_counts

    # Here first, where what is wrong with the settings becomes one clear line.
    create_app().extensions["comfyfleet"].close()
    click.echo(f"Serving on http://{host}:{port} (docs at /docs). Ctrl-C stops.")
    sys.stdout.flush()
    if not os.environ.get(shared_counts.FOLDER):
        os.environ[shared_counts.FOLDER] = str(shared_counts.make_folder())
    command = gunicorn_command(host=host, port=port, workers=workers, threads=threads)
    os.execv(command[0], command)  # noqa: S606


def gunicorn_command(
    *,
    host: str,
    port: int,
    workers: int,
    threads: int,
    graceful_seconds: int = 25,
) -> list[str]:
    command = [
        sys.executable, "-m", "gunicorn", "--bind", f"{host}:{port}",
        "--worker-class", "gthread", "--workers", str(workers), "--threads", str(threads),
        "--graceful-timeout", str(graceful_seconds), "--keep-alive", "75",
        # Past its own 1000, each further client would wait for seconds to be let in.
        "--worker-connections", str(connections_of_a_process()),
        "--worker-tmp-dir", "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp",  # noqa: S108
        "--config", "python:webapp.gunicorn_hooks",
        "--no-control-socket", "--preload",
    ]  # fmt: skip
    return [*command, "--access-logfile", "-", "webapp.wsgi:app"]


def connections_of_a_process() -> int:
    """Every GPU worker keeps two. Half of its open files are left for the rest."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(files // 2, MOST_CONNECTIONS)
    )
