"""E(B) under a recipe, predicted from one run and the noise of its gradients, where the optimizer scales as Adam does.

The Bcrit of `noise_scale.py` is that of training with the best learning rate for each batch. A recipe sets the rates,
and Adam steps by rate · m / √v, where v, the mean square of the gradients that it remembers, is |G|² + σ² / B. So the
size of a step is the rate; its share 1 / √(1 + b / B) is along G, with b for the noise over the signal in v. The
distance along G to the target is the same at every batch:

    Σ rates of updates at B  /  Σ rates of the run's updates  =  √((1 + b / B) / (1 + b / B of the run))

    B ≪ b, rates by √B    updates as 1 / B     E is flat
    B ≫ b, rates by √B    updates as 1 / √B    E rises as √B; by theory, with the best rates, as B

A warm-up of some epochs shortens the steps of every batch alike, and is in the rates. v adds up squares over steps, and
so b is the quotient of sums over steps (`NoiseScale.b_simple`), in the optimizer's coordinates, in which an element
counts as it moves. Left out: the loss by noise, steps so long that the curvature bounds them, that b differs
from element to element, so that batches take different directions, and that v forgets within a long run.

Source:
    v of noisy gradients, and rates by √B that keep E flat at small batches: Malladi et al., arXiv 2205.10330. The
    length of the path is worked out here from the same premises.
"""

import math
from collections.abc import Iterator, Mapping

from trimaran.convergence.curve_fit import fit_form
from trimaran.convergence.types import CurveTable, Point


class RateSchedule:
    """How far the updates of a batch go: the sum of their learning rates.

    Args:
        batch: global batch [samples]
        samples: of an epoch; its last update may be smaller
        rates: learning rate of each update, taken only as far as somebody asks; 0 after the last

    Example:
        >>> from itertools import repeat
        >>> schedule = RateSchedule(4, samples=10, rates=repeat(0.5))     # updates of 4, 4 and 2 samples
        >>> schedule.until(1.4), schedule.epochs_to(2.0, most=5.0)
        (2.0, 1.4)
    """

    def __init__(self, batch: int, *, samples: int, rates: Iterator[float]) -> None:
        self.batch = batch
        self._samples = samples
        self._updates = -(-samples // batch)
        self._rates = rates
        self._sums = [0.0]

    def until(self, epochs: float) -> float:
        """Sum of the rates until a number of epochs; an update that is under way counts in part.

        Args:
            epochs: of training
        """
        update = self._update_at(epochs)
        start, end = self._epochs_after(update), self._epochs_after(update + 1)
        self._go_on(update + 1)
        return self._sums[update] + (self._sums[update + 1] - self._sums[update]) * (epochs - start) / (end - start)

    def epochs_to(self, length: float, *, most: float) -> float | None:
        """Epochs until the sum of the rates is so large; None where it is not within the most.

        Args:
            length: sum of rates
            most: limit [epochs]
        """
        low, high = 0, 1
        while self._sum(high) < length:
            if self._epochs_after(high) >= most:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._sums[middle] < length else (low, middle)
        start, end = self._epochs_after(low), self._epochs_after(high)
        found = start + (end - start) * (length - self._sums[low]) / (self._sums[high] - self._sums[low])
        return found if found <= most else None

    def _sum(self, updates: int) -> float:
        self._go_on(updates)
        return self._sums[updates]

    def _go_on(self, updates: int) -> None:
        while len(self._sums) <= updates:
            self._sums.append(self._sums[-1] + next(self._rates, 0.0))

    def _epochs_after(self, updates: int) -> float:
        whole, more = divmod(updates, self._updates)
        return whole + more * self.batch / self._samples

    def _update_at(self, epochs: float) -> int:
        whole = math.floor(epochs)
        return whole * self._updates + min(int((epochs - whole) * self._samples / self.batch), self._updates - 1)


def predict_epochs(
    run: RateSchedule, epochs: float, noise_scale: float, other: RateSchedule, *, most: float
) -> float | None:
    """Epochs that another batch needs, by one run and the noise of its gradients.

    Args:
        run: how the run's batch goes
        epochs: that the run needed
        noise_scale: b, infinite where no signal is seen [samples]
        other: how the other batch goes
        most: limit [epochs]

    Returns:
        Epochs; None where the other batch does not arrive within `most`.

    Example:
        >>> from itertools import repeat
        >>> run = RateSchedule(10, samples=1000, rates=repeat(0.1))
        >>> other = RateSchedule(40, samples=1000, rates=repeat(0.2))        # by the square root of the batch
        >>> # 0.1 · 100 · √((1 + 120 / 40) / (1 + 120 / 10)) = 5.547: 27.7 updates of 40
        >>> round(predict_epochs(run, 1.0, 120.0, other, most=9.0), 4)
        1.1094
    """
    if math.isinf(noise_scale):
        ratio = run.batch / other.batch
    else:
        ratio = (1.0 + noise_scale / other.batch) / (1.0 + noise_scale / run.batch)
    return other.epochs_to(run.until(epochs) * math.sqrt(ratio), most=most)


def predict_b_crit(
    schedules: Mapping[int, RateSchedule], batch: int, epochs: float, noise_scale: float, *, most: float
) -> float | None:
    """Bcrit of E(B) predicted from one run, by the fit that measured points get.

    Args:
        schedules: of the batches of the curve, and of the run's
        batch: of the run [samples]
        epochs: that it needed
        noise_scale: b, infinite where no signal is seen [samples]
        most: epochs after which a batch counts as failed

    Returns:
        Critical batch, infinite where E does not rise [samples]; None where no other batch arrives, or the run did not
        move.
    """
    if not schedules[batch].until(epochs) > 0.0:
        return None
    predicted = {
        size: predict_epochs(schedules[batch], epochs, noise_scale, schedule, most=most)
        for size, schedule in schedules.items()
    }
    points = tuple(
        Point(global_batch=size, amount=need) for size, need in sorted(predicted.items()) if need is not None
    )
    if len(points) < 2:
        return None
    table = CurveTable(task="predicted", unit="epochs", points=points, source="the noise of one run's gradients")
    return fit_form(table).b_crit
