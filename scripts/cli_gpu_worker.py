"""`comfyfleet gpu-worker`: the program of a GPU machine, where nothing else of ours may be."""

import sys

import click


@click.command("gpu-worker")
def gpu_worker() -> None:
    """Work for a fleet: wait for ComfyUI, register, take jobs until stopped.

    SIGTERM hands the job back and leaves the fleet. Exit code 2: it can't work as it was set up.
    """
    from gpu_worker.boot import main

    sys.exit(main())
