"""Times to train: rows with the time of a whole training. A row is predicted from another row of the same file."""

from collections.abc import Sequence

from trimaran_studies.published.rows import SUBMITTED
from trimaran_studies.time_to_train.from_submissions import answer_submissions
from trimaran_studies.time_to_train.from_tables import answer_tables
from trimaran_studies.validation.measurement import Answer, Row

FAMILY = "time_to_train"


def answer_times(rows: Sequence[Row]) -> tuple[Answer, ...]:
    """Predict rows of this family; answers are in their order.

    Args:
        rows: all of them together, because one is predicted from another
    """
    answers: list[Answer | None] = [None] * len(rows)
    results = [place for place, row in enumerate(rows) if row.fields.get("metric") == SUBMITTED]
    tables = [place for place, row in enumerate(rows) if row.fields.get("metric") != SUBMITTED]
    for places, answer in ((results, answer_submissions), (tables, answer_tables)):
        for place, found in zip(places, answer([rows[place] for place in places]), strict=True):
            answers[place] = found
    return tuple(found for found in answers if found is not None)
