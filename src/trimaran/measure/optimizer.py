"""What the update and the clipping of a job's parameters take, and what state its optimizer keeps.

The job's own optimizer steps over its own parameters, each time after a forward and a backward, as in a step: first
all of them, then parts (every second, the small half, the large quarter), from which fixed, per-tensor and per-byte
times follow. Runs inside the ranks; imports torch.
"""

from collections.abc import Sequence

import torch
from torch import nn

from trimaran.errors import InputError
from trimaran.graph.optimizers import named_in
from trimaran.job import Job
from trimaran.measure.findings import Timed
from trimaran.measure.fits import ListKey
from trimaran.measure.whole import WholeModel, drop_gradients
from trimaran.runtime.streams import Streams
from trimaran.runtime.updates import Updater


class Updates:
    """Updates of the parameters of a model, by lists of them.

    Args:
        job: makes the optimizer; hooks on it do not fire, and there is no schedule, which may end
        model: on its device; the values of its parameters are put back after each round
        whole: runs its forward and backward
        clock: by which compute is measured
    """

    def __init__(self, job: Job, model: nn.Module, whole: WholeModel, clock: Streams) -> None:
        self._model = model
        self._whole = whole
        self._clock = clock
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._trained = trained
        self._lists: dict[ListKey, tuple[list[nn.Parameter], Updater]] = {}
        for chosen in choose_lists(trained):
            try:
                updater = Updater(job, named_in(model, chosen), chosen, measured=True)
            except InputError:
                if not self._lists:
                    raise
                # An optimizer may want certain parameters to be there: then it is timed on fewer lists.
                continue
            self._lists[list_key(chosen)] = (chosen, updater)

    def run(self, repeats: int) -> dict[Timed, list[float]]:
        """Update each list after a forward and a backward of its own.

        Args:
            repeats: how often

        Returns:
            Durations of "update" and "clip", by list; of all parameters first [s].
        """
        saved = [parameter.detach().clone() for parameter in self._trained]
        found: dict[Timed, list[float]] = {}
        # Twice at most: there is a forward and a backward for each of several lists.
        for _ in range(min(repeats, 2)):
            for key, (parameters, updater) in self._lists.items():
                self._whole.step([])
                self._fill_gradients(parameters)
                started = self._clock.stamp()
                updater.clip(updater.square_norm(str(parameters[0].device)).sqrt())
                clipped = self._clock.stamp()
                updater.update()
                ended = self._clock.stamp()
                self._clock.synchronize()
                found.setdefault(Timed(key, 0, "clip"), []).append(self._whole.seconds(started, clipped))
                found.setdefault(Timed(key, 0, "update"), []).append(self._whole.seconds(clipped, ended))
        drop_gradients(self._model)
        with torch.no_grad():
            for parameter, value in zip(self._trained, saved, strict=True):
                parameter.copy_(value)
        return found

    def state_bytes_per_byte(self) -> float:
        """Bytes of optimizer state for a byte of parameter, once there was an update; counters of steps left out."""
        if not self._trained:
            return 0.0
        key = list_key(self._trained)
        optimizer = self._lists[key][1].optimizer
        states = optimizer.state if optimizer is not None else {}
        kept = [value for parameter in states for value in states[parameter].values()]
        nbytes = sum(value.nbytes for value in kept if isinstance(value, torch.Tensor) and value.dim())
        return nbytes / max(1, key.nbytes)

    def _fill_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        # A parameter that the model did not use in this batch is updated in others.
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def choose_lists(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The lists of parameters whose update is measured: all, and parts that differ in number and size.

    Args:
        parameters: all; none where nothing is trained
    """
    if not parameters:
        return []
    by_size = sorted(parameters, key=lambda parameter: parameter.numel())
    count = len(parameters)
    small, large = by_size[: (count + 1) // 2], by_size[-max(1, count // 4) :]
    return [list(parameters), list(parameters[::2]), small, large]


def list_key(parameters: Sequence[nn.Parameter]) -> ListKey:
    """Length and bytes of a list of parameters."""
    return ListKey(len(parameters), sum(parameter.nbytes for parameter in parameters))
