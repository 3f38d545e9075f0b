"""Public training runs of transformers, every one of which ran: none is said not to fit."""

import pytest

from trimaran.pricing.analytical.fits_device import bookkeeping_of, judge_fit
from trimaran_studies.validation.field import field_rows, field_run
from trimaran_studies.validation.measurement import Row


@pytest.mark.parametrize("row", field_rows(), ids=lambda row: row.row_id)
def test_a_run_that_ran_is_not_said_not_to_fit(row: Row) -> None:
    run, machine = field_run(row)
    device, program = machine.node.device, run.program
    keeping = bookkeeping_of(program.precision, device, attention=program.attention, eager=program.eager)
    fit = judge_fit(run.shape, run.degrees, keeping=keeping, device_bytes=device.usable_bytes)
    assert fit.verdict != "does not fit", fit.words


def test_most_of_them_fit_as_they_are() -> None:
    """Leaner bookkeeping is the exception, so that the test above says something."""
    verdicts = []
    for row in field_rows():
        run, machine = field_run(row)
        keeping = bookkeeping_of(run.program.precision, machine.node.device, attention=run.program.attention)
        verdicts.append(
            judge_fit(run.shape, run.degrees, keeping=keeping, device_bytes=machine.node.device.usable_bytes).verdict
        )
    assert verdicts.count("fits") >= 0.7 * len(verdicts)
