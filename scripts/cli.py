"""`comfyfleet`: the commands people run.

Exit codes: 0 all is well, 1 the command found something wrong (a schema that is not
current, a ledger that does not add up), 2 it could not do what was asked.

The commands bring their imports when they are called: a GPU worker has this program too,
but neither Flask nor a database driver.
"""

from importlib import metadata

import click

from scripts import (
    cli_audit,
    cli_control,
    cli_database,
    cli_dead_letters,
    cli_demo,
    cli_doctor,
    cli_drill,
    cli_effects,
    cli_fleets,
    cli_gpu_worker,
    cli_jobs,
    cli_money,
    cli_queue,
    cli_serve,
    cli_up,
    cli_workers,
    cli_workflows,
)


def version() -> str:
    try:
        return metadata.version("comfyfleet")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "not installed"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="comfyfleet")
def main() -> None:
    """Run paid ComfyUI effects on fleets of GPUs.

    Settings come from the environment (COMFYFLEET_...); docs/settings.md lists them.
    """


main.add_command(cli_database.database)
main.add_command(cli_database.seed)
main.add_command(cli_money.ledger)
main.add_command(cli_money.wallet)
main.add_command(cli_queue.queue)
main.add_command(cli_jobs.jobs)
main.add_command(cli_dead_letters.dead_letters)
main.add_command(cli_audit.audit)
main.add_command(cli_serve.serve)
main.add_command(cli_control.control)
main.add_command(cli_up.up)
main.add_command(cli_demo.demo)
main.add_command(cli_doctor.doctor)
main.add_command(cli_drill.spot_drill)
main.add_command(cli_workflows.workflows)
main.add_command(cli_effects.effects)
main.add_command(cli_fleets.fleets)
main.add_command(cli_workers.workers)
main.add_command(cli_gpu_worker.gpu_worker)

if __name__ == "__main__":
    main()
