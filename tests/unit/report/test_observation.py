"""The page of an observation: readable at 80 columns, however many ranks a script has."""

from dataclasses import replace

import pytest
from tests.unit.report.pages import observation

from trimaran.report.observation import Observation, ObservedRank


def of_ranks(count: int) -> Observation:
    """Ranks of which each computes a little longer than the one before."""
    parts = [{"BP  backward": 0.02 + 0.001 * rank, "collectives of the script": 0.0123} for rank in range(count)]
    ranks = [ObservedRank(rank=rank, samples=8.0, peak_bytes=1, parts_s=held) for rank, held in enumerate(parts)]
    return replace(observation(), ranks=ranks, parts_s=parts[0], step_time_s=0.0323)


@pytest.mark.parametrize("count", [1, 2, 4, 8, 1024])
def test_no_figure_is_cut_however_many_ranks_there_are(count: int) -> None:
    """Of 8 ranks the names of the parts were cut, and of 16 every figure."""
    lines = str(of_ranks(count)).splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    (row,) = [line.split() for line in lines if line.startswith("BP")]
    if count > 4:
        most = 20 + (count - 1)
        assert row[-4:] == ["20.0", "ms", *(f"{most:.1f} ms" if most < 100 else "1.04 s").split()]
        assert "each of which --json has" in " ".join(lines)
    elif count > 1:
        assert row[-2:] == [f"{20 + count - 1:.1f}", "ms"]
