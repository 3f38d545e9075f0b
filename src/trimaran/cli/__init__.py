"""The command line: thin files, one a command or a few of one subject. Importing it does not import torch.

Packages add commands by entry points of the group "trimaran.commands"; `trimaran_studies` does.
"""

import os
from importlib.metadata import entry_points

import typer

from trimaran.cli import (
    catalog,
    check,
    checkpoint,
    convergence,
    diagnose,
    explain,
    export,
    machine,
    memory,
    place,
    plan,
    price,
    rehearse,
    report,
    scale,
    simulate,
    train,
)
from trimaran.cli.forms import STUDIES
from trimaran.cli.help import HelpedCommand, application, with_verbosity
from trimaran.cli.output import guard_log, open_streams

app = application("trimaran", "Plan, simulate and run the training of deep neural networks on many devices.")
_COMMANDS = (
    *(plan.plan, check.check, memory.memory, scale.scale, convergence.crossover, export.export, train.train),
    *(explain.explain, diagnose.observe, report.report, machine.doctor),
)
_FORMS = (
    *(price.price, place.place, simulate.simulate, simulate.emulate, convergence.converge, diagnose.profile),
    *(machine.calibrate, catalog.jobs, catalog.clusters, convergence.curve),
)
for command in _COMMANDS:
    app.command(cls=HelpedCommand)(with_verbosity(command))
for command in _FORMS:
    app.command(cls=HelpedCommand, hidden=True)(with_verbosity(command))
app.command("export-checkpoint", cls=HelpedCommand, hidden=True)(with_verbosity(checkpoint.export))
app.command(cls=HelpedCommand, context_settings=rehearse.SETTINGS)(with_verbosity(rehearse.rehearse))
app.command(cls=HelpedCommand, context_settings=rehearse.SETTINGS)(with_verbosity(rehearse.verify))
for point in sorted(entry_points(group="trimaran.commands"), key=lambda point: point.name, reverse=True):
    app.command(cls=HelpedCommand, hidden=point.name in STUDIES)(with_verbosity(point.load()))
app.add_typer(checkpoint.before, hidden=True)
app.add_typer(catalog.catalog)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if version:
        from trimaran.base import VERSION

        typer.echo(VERSION)
        raise typer.Exit


def main() -> None:
    """Entry point of the `trimaran` command."""
    guard_log()
    open_streams()
    # The first command after an installation would else measure a machine that is busy with it.
    os.environ.setdefault("TRIMARAN_SETTLE", "10")
    app()
