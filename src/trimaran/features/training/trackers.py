"""Metrics of a training in TensorBoard, Weights & Biases or MLflow, each in its own terms.

None of them is a dependency. Rank 0 writes, and x is the number of the step: 0 for the first one, and for the end of an
epoch the steps that are done. A checkpoint has where its curve is, so that a training that goes on from it goes on with
that curve: TensorBoard drops the points since the checkpoint, and to the others only points that they lack are sent.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from trimaran.base.errors import EnvironmentProblem, InputError, did_you_mean
from trimaran.base.signals import say
from trimaran.base.user_errors import summary
from trimaran.graph.behaviour import WholeMetric

LOSS = "train/loss"
_SENT_AT_ONCE = 500
"""Figures; MLflow's server takes 1,000 in a request."""


class _Tracker(Protocol):
    place: str

    def add(self, step: int, figures: Mapping[str, float]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class _TensorBoard:
    """Events in a folder; those of an earlier process from `step` on are dropped."""

    def __init__(self, place: str, folder: Path, step: int, facts: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.place = place if place and Path(place).is_dir() else str(folder.absolute())
        self._writer = SummaryWriter(self.place, purge_step=step, flush_secs=10)
        if not step:
            self._writer.add_text("run", "\n".join(f"- {name}: {value}" for name, value in facts.items()), 0)
        self.flush, self.close = self._writer.flush, self._writer.close

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)


class _WeightsAndBiases:
    """A run by its id; WANDB_PROJECT, WANDB_MODE and the like say where and how."""

    def __init__(self, place: str, folder: Path, step: int, facts: Mapping[str, Any]) -> None:
        import wandb

        resume = {"id": place, "resume": "allow"} if place else {"name": folder.name}
        self._run = wandb.init(config=dict(facts), reinit="create_new", **resume)
        self.place, self.close = self._run.id, self._run.finish

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        if step >= self._run.step:
            self._run.log(dict(figures), step=step)

    def flush(self) -> None:
        """Another process writes."""


class _MLflow:
    """A run by its id; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where. About a request a second."""

    def __init__(self, place: str, folder: Path, step: int, facts: Mapping[str, Any]) -> None:
        import mlflow

        run = mlflow.start_run(run_id=place or None, run_name=None if place else folder.name, nested=True)
        self.place, self._mlflow, self._client = run.info.run_id, mlflow, mlflow.MlflowClient()
        there = self._client.get_metric_history(self.place, LOSS) if place else []
        self._from = max((point.step + 1 for point in there), default=0)
        self._points: list[Any] = []
        self._sent_s = time.monotonic()
        if not place:
            mlflow.log_params(dict(facts))

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        if step >= self._from:
            now_ms = time.time_ns() // 1_000_000
            self._points += [self._mlflow.entities.Metric(name, one, now_ms, step) for name, one in figures.items()]
        if len(self._points) >= _SENT_AT_ONCE or time.monotonic() - self._sent_s >= 1.0:
            self.flush()

    def flush(self) -> None:
        points, self._points, self._sent_s = self._points, [], time.monotonic()
        self._client.log_batch(self.place, metrics=points)

    def close(self) -> None:
        self.flush()
        self._mlflow.end_run()


TRACKERS: Mapping[str, Callable[[str, Path, int, Mapping[str, Any]], _Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}
"""By the name of the package that each needs."""


def check_tracker(tool: str | None) -> None:
    """Refuse, before anything starts, a tracker that cannot be written to here.

    Args:
        tool: its name; None: no tracker is asked for

    Raises:
        InputError: there is none of that name
        EnvironmentProblem: it is not installed
    """
    if tool is None:
        return
    if tool not in TRACKERS:
        raise InputError(f'no tracker is called "{tool}"{did_you_mean(tool, TRACKERS)}', code="log.unknown", log=tool)
    if find_spec(tool) is None:
        raise EnvironmentProblem(
            f"metrics cannot be written to {tool}, which is not installed: pip install {tool}",
            code="log.not-installed",
            log=tool,
        )


class MetricLog:
    """What rank 0 writes to a tracker. A tracker that fails is said once and left; the training goes on.

    Args:
        tool: a name of `TRACKERS`
        folder: of TensorBoard's events; others call the run by its name
        facts: of the run, by name

    Attributes:
        place: where the curve is, as a checkpoint keeps it: a folder, or the id of a run; empty: nowhere yet
    """

    def __init__(self, tool: str, folder: Path, facts: Mapping[str, Any]) -> None:
        self.place = ""
        self._tool, self._folder, self._facts = tool, folder, facts
        self._tracker: _Tracker | None = None
        self._failed = False

    def add(self, step: int, figures: Mapping[str, float | None]) -> None:
        """Write figures of a step; those that are no finite numbers are left out."""
        known = {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}
        self._try(partial(self._add, step, known))

    def go_on(self, place: str, step: int, ended: Mapping[str, float | None] | None) -> None:
        """Go on with a curve from a step that a checkpoint has.

        Args:
            place: as the checkpoint has it
            step: training steps that are done
            ended: figures of the epoch that ended with them; None: none did
        """
        self.close()
        self.place = place
        if ended is not None:
            self.add(step, ended)

    def flush(self) -> None:
        """Write what is not written, as before a checkpoint: a process that is killed loses no point up to it."""
        if self._tracker is not None:
            self._try(self._tracker.flush)

    def close(self) -> None:
        """Write the rest; a figure after it opens the tracker again."""
        if self._tracker is not None:
            self._try(self._tracker.close)
            self._tracker = None

    def _add(self, step: int, figures: Mapping[str, float]) -> None:
        if self._tracker is None:
            self._tracker = TRACKERS[self._tool](self.place, self._folder, step, self._facts)
            self.place = self._tracker.place
        self._tracker.add(step, figures)

    def _try(self, write: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            write()
        except Exception as error:  # noqa: BLE001 a training does not end because a note of it cannot be written
            self._failed = True
            say(f"trimaran: metrics are no longer written to {self._tool}: {summary(error)}")


def name_of_metric(metric: Callable[..., Any] | None) -> str:
    """What a metric is called where it is a function, or an object of a class, with a name."""
    metric = metric.metric if isinstance(metric, WholeMetric) else metric
    metric = metric.func if isinstance(metric, partial) else metric
    name = getattr(metric, "__name__", type(metric).__name__)
    return name.replace("_", " ") if name.isidentifier() and metric is not None else "metric"
