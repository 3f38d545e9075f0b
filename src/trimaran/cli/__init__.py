"""The command line: one thin file a command. Importing it does not import torch.

Packages add commands by entry points of the group "trimaran.commands"; `trimaran_studies` does.
"""

from importlib.metadata import entry_points

import typer

from trimaran.cli import (
    calibrate,
    check,
    checkpoint,
    clusters,
    converge,
    crossover,
    curve,
    doctor,
    emulate,
    explain,
    export,
    jobs,
    memory,
    observe,
    place,
    plan,
    price,
    profile,
    rehearse,
    scale,
    simulate,
    train,
)
from trimaran.cli.output import guard_log

app = typer.Typer(
    name="trimaran",
    help="Plan, simulate and run the training of deep neural networks on many devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(check.check)
app.command()(train.train)
app.command()(plan.plan)
app.command()(price.price)
app.command()(place.place)
app.command()(simulate.simulate)
app.command()(emulate.emulate)
app.command()(explain.explain)
app.command()(export.export)
app.command()(memory.memory)
app.command()(scale.scale)
app.command()(curve.curve)
app.command()(converge.converge)
app.command()(crossover.crossover)
app.command()(profile.profile)
app.command()(calibrate.calibrate)
app.command()(observe.observe)
app.command(context_settings=rehearse.SETTINGS)(rehearse.rehearse)
for point in sorted(entry_points(group="trimaran.commands"), key=lambda point: point.name, reverse=True):
    app.command()(point.load())
app.command()(jobs.jobs)
app.command()(clusters.clusters)
app.command()(doctor.doctor)
app.add_typer(checkpoint.checkpoint)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if version:
        from trimaran import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the `trimaran` command."""
    guard_log()
    app()
