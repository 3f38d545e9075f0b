"""What a calibration gives to a plan: costs where it was asked for, and the noise of repeated runs in any case."""

from dataclasses import dataclass

from trimaran.costs.noise import Noise, noise_for
from trimaran.costs.tables import CostTable
from trimaran.measure.calibration import Calibration, check_machine
from trimaran.measure.calibration_files import kept_calibration, read_calibration
from trimaran.program import Strategy
from trimaran.session.request import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The calibration that a plan goes by.

    Attributes:
        calibration: of this machine; None where there is none
        file: it was asked for by its name, so that its costs count before those of the cache
    """

    calibration: Calibration | None = None
    file: str = ""

    @property
    def tables(self) -> tuple[CostTable, ...]:
        """Costs that count before those of the cache."""
        return self.calibration.tables if self.calibration is not None and self.file else ()

    def noise_of(self, strategy: Strategy) -> Noise | None:
        """How far identical runs on the ranks of a strategy are apart."""
        return None if self.calibration is None else noise_for(self.calibration.noise, ranks=strategy.devices)

    def lacks(self, ranks: int) -> tuple[str, ...]:
        """What the user should know of a calibration that has nothing about so many ranks.

        Args:
            ranks: that may take part
        """
        known = sorted({table.fingerprint.ranks for table in self.tables})
        if not known or ranks in known:
            return ()
        return (
            f"{self.file} has costs measured with {', '.join(map(str, known))} ranks busy, not with {ranks}: "
            "costs were taken from the cache, or measured",
        )


def noise_here(*, ranks: int) -> Noise | None:
    """How far identical runs are apart on this machine, as it was calibrated; None where it was not.

    Args:
        ranks: of the runs
    """
    from trimaran.measure.costs import fingerprint_here

    calibration = kept_calibration(fingerprint_here(1))
    return None if calibration is None else noise_for(calibration.noise, ranks=ranks)


def find_calibrated(request: PlanRequest) -> Calibrated:
    """The calibration that a request names, or the one that is kept of this machine.

    Args:
        request: names a file, or none

    Raises:
        InputError: no such file, or the calibration of another machine
        CorruptDataError: the file is truncated or was edited
    """
    from trimaran.measure.costs import fingerprint_here

    path = request.calibration
    if path is None:
        return Calibrated(calibration=kept_calibration(fingerprint_here(1)))
    calibration = read_calibration(path)
    check_machine(calibration, fingerprint_here(calibration.fingerprint.ranks), source=str(path))
    return Calibrated(calibration=calibration, file=str(path))
