"""The noise of repeated runs, as it is said beside a comparison.

An error of a prediction means little where it is smaller than the difference of two runs that are alike.
"""

from typing import Any

from trimaran.costs.noise import Noise


def noise_line(noise: Noise | None) -> str:
    """One line for people, to be read beside a measured figure.

    Args:
        noise: of runs like the measured one; None where it is not known

    Example:
        >>> runs = {"ranks": 2, "step_time_s": (0.1, 0.101), "date": "2026-11-20", "source": "example"}
        >>> noise_line(Noise(low=-0.038, high=0.04, **runs))
        'identical runs on 2 ranks differ by up to ±4.0 % (90 %), calibrated 2026-11-20'
        >>> noise_line(None)
        'noise of repeated runs unknown here: trimaran calibrate'
    """
    if noise is None:
        return "noise of repeated runs unknown here: trimaran calibrate"
    ranks = "1 rank" if noise.ranks == 1 else f"{noise.ranks} ranks"
    percent = 100 * noise.high
    return (
        f"identical runs on {ranks} differ by up to ±{percent:.{1 if percent < 10 else 0}f} % (90 %), "
        f"calibrated {noise.date}"
    )


def noise_document(noise: Noise | None) -> dict[str, Any] | None:
    """The same for programs.

    Args:
        noise: of runs like the measured one; None where it is not known

    Returns:
        `interval`, at 90 %, of the ratio of two identical runs minus 1; `date`, `ranks`, `runs`, `source`.
    """
    if noise is None:
        return None
    return {
        "interval": [noise.low, noise.high],
        "date": noise.date,
        "ranks": noise.ranks,
        "runs": len(noise.step_time_s),
        "source": noise.source,
    }
