"""`trimaran check`: what a job does, and which kinds of plans train it exactly."""

import os
from typing import Annotated

from trimaran.cli.options import Batch, Json, Reference, Seed, option
from trimaran.cli.output import console, errors_reported, print_json


def check(
    job: Reference,
    batch: Batch = None,
    seed: Seed = None,
    show_all: Annotated[bool, option("List what is usual, too.", "--all")] = False,
    as_json: Json = False,
) -> None:
    """Say before it trains which kinds of plans train a job exactly as one process does, and why others would not."""
    # Threads that spin while they wait for the next small operation take a core each; libgomp reads it with torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with errors_reported(as_json=as_json):
        from trimaran.cli.following import following
        from trimaran.features.check import check_job, print_checked
        from trimaran.jobs.resolve import JobSource
        from trimaran.report.tables import print_next

        checked = check_job(JobSource(reference=job, global_batch_size=batch, seed=seed))
        if as_json:
            print_json(checked.document)
            return
        out = console()
        print_checked(out, checked, show_all=show_all)
        if any(one.exact for one in checked.kinds):
            print_next(out, following("plan"))
