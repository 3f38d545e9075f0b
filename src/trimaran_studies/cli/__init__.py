"""Commands of `python -m trimaran_studies`."""

from trimaran.cli.help import HelpedCommand, application, with_verbosity
from trimaran.cli.output import guard_log, open_streams
from trimaran_studies.cli.planbench import planbench
from trimaran_studies.cli.reproduce import reproduce
from trimaran_studies.cli.validate import validate

app = application(
    "trimaran_studies",
    "Predictions against published measurements, and the experiments of papers next to their figures.",
)
for command in (validate, planbench, reproduce):
    app.command(cls=HelpedCommand)(with_verbosity(command))


def main() -> None:
    """Answer the words of the command line."""
    guard_log()
    open_streams()
    app(prog_name="python -m trimaran_studies")
