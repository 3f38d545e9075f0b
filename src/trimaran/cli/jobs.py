"""`trimaran jobs`: what can be trained without writing anything."""

from trimaran.cli.options import Json
from trimaran.cli.output import console, errors_reported, print_json


def jobs(as_json: Json = False) -> None:
    """List the built-in jobs."""
    with errors_reported(as_json=as_json):
        from rich.table import Table

        from trimaran.session.jobs import BUILT_IN, NETWORKS

        listed = {**BUILT_IN, **NETWORKS}
        if as_json:
            print_json({"jobs": [{"name": name, "summary": job.summary} for name, job in listed.items()]})
            return
        table = Table("job", "what it is", box=None)
        for name, job in listed.items():
            table.add_row(name, job.summary)
        console().print(table)
        console().print("\nYour own: file.py:factory, where factory() returns a trimaran.Job.")
        console().print("A Hugging Face configuration: config.json, or config.json:sequence=2048; data are synthetic.")
