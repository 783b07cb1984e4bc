"""The benches, by name: `scripts/bench NAME`."""

import importlib
from pathlib import Path

import click

BENCHES = {
    "submit": "POST /api/ai-jobs against a bare Flask endpoint with one INSERT",
    "events": "POST /api/ai-jobs with 1 000 idle event streams open, against the same without",
    "pipeline": "a job through web, Redis, worker and ComfyUI against bare Celery and bare ComfyUI",
    "fleet": "how many GPU workers one control plane holds",
    "lease": "a lease with 100, 10 000 and 1 000 000 jobs waiting",
}


@click.command()
@click.argument("name", type=click.Choice([*BENCHES]))
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the bench file here.")
def main(name: str, path: Path | None) -> None:
    """Measure one thing, as ratios within one run, on servers of its own.

    \b
    submit  POST /api/ai-jobs against a bare Flask endpoint with one INSERT
    events  POST /api/ai-jobs with 1 000 idle event streams open, against the same without
    pipeline  a job through web, Redis, worker and ComfyUI, against bare Celery and ComfyUI
    fleet   how many GPU workers one control plane holds
    lease   a lease with 100, 10 000 and 1 000 000 jobs waiting
    """
    click.echo(f"bench {name}: {BENCHES[name]} ...", err=True)
    result = importlib.import_module(f"scripts.bench_{name}").run()
    click.echo(result.table())
    if path:
        result.write(path)
        click.echo(f"Written to {path}.", err=True)


if __name__ == "__main__":
    main()
