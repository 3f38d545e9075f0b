"""`trimaran observe`: run an unmodified script, and say what limits it."""

from typing import Annotated

import typer

from trimaran.base.signals import Interrupted
from trimaran.cli.options import Json
from trimaran.cli.output import console, errors_reported, print_json

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND...", help="What to run, such as: -- python train.py", show_default=False),
]
Again = Annotated[
    bool, typer.Option("--again/--not-again", help="Time a copy of the model on larger batches after the script.")
]


def observe(command: Command = None, again: Again = True, as_json: Json = False) -> None:
    """Run a PyTorch script as it is; say what its steps are spent on, what limits them, and what would help.

    With --json, what the script writes to standard output goes to standard error.
    """
    with errors_reported(as_json=as_json):
        from trimaran.base.errors import InputError

        if not command:
            raise InputError("nothing to run: trimaran observe -- python train.py")
        from trimaran.base.errors import ExecutionError, TrimaranError
        from trimaran.features.diagnose.observe import conclude, describe_exit, observe_command
        from trimaran.report.observation import observation_document, observation_view

        observed = observe_command(command, again=again, output_to=2 if as_json else None)
        ended = describe_exit(observed.exit_code)
        try:
            observation = conclude(observed.records, others=observed.others)
        except TrimaranError as error:
            if observed.stopped is not None:
                interrupted = Interrupted(observed.stopped)
                interrupted.add_note(error.message)
                raise interrupted from None
            if ended is None:
                raise
            raise ExecutionError(f"{ended}; {error.message}", exit_code_of_command=observed.exit_code) from None
        if as_json:
            print_json({"exit_code_of_command": observed.exit_code} | observation_document(observation))
        else:
            from trimaran.report.tables import print_next

            out = console()
            out.print(observation_view(observation))
            words = ["trimaran", "observe", "--", *command]
            print_next(out, words, "after a change" if observation.remedies else "")
        if observed.stopped is not None:
            raise Interrupted(observed.stopped)
        if ended is not None:
            raise SystemExit(_say(ended))


def _say(ended: str) -> int:
    from trimaran.base.errors import ExecutionError

    typer.echo(f"trimaran: {ended}; the report is of what was seen until then", err=True)
    return ExecutionError.exit_code
