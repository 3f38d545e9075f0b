"""Rows of published measurements, made by hand."""

from trimaran_studies.validation.measurement import Row


def published(family: str = "dp_throughput", *, measured: float = 100.0, unit: str = "images/s", **fields: str) -> Row:
    """A row with these columns; the anchor is the column `anchor`."""
    anchor = fields.pop("anchor", "")
    return Row(
        row_id=fields.pop("row_id", "r1"),
        family=family,
        fields=fields,
        measured=measured,
        unit=unit,
        anchor=float(anchor) if anchor else None,
    )
