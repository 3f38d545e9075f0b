"""Price of given strategies of a transformer, one or a file of them, by the analytical model.

Nothing is searched, traced or measured: the step, the memory and their parts follow from the words of a strategy. It is
the price by which `plan` compares the same strategy with others.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.files import given, read_text
from trimaran.base.remedies import Way
from trimaran.base.units import format_bytes, whole_number
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.machine.find import find_machine
from trimaran.planner.analytical.candidates import (
    AnalyticalCandidate,
    AnalyticalModel,
    AnalyticalProblem,
    HostMemory,
    host_memory,
)
from trimaran.planner.analytical.given import complete_strategy
from trimaran.planner.analytical.search import assumed_software, check_framework
from trimaran.planner.pins import parse_pins
from trimaran.planning.analytical import Analytical, decoder_shape
from trimaran.planning.answer.evidence import Outlook
from trimaran.planning.long_runs import training_of_tokens
from trimaran.planning.plan import find_backend
from trimaran.planning.refusals import ways
from trimaran.planning.requests import NO_TARGET, PlanRequest
from trimaran.planning.target import Cell, check_price
from trimaran.pricing.analytical.fits_device import DeviceFit, Verdict, judge_fit
from trimaran.pricing.analytical.programs import SEQUENCE_PARALLEL
from trimaran.program.strategy import read_strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A strategy to price, as it was written.

    Attributes:
        strategy: its words
        batch: sequences of a step, as it was written; "": as the words or the request say
        name: of the row in a file; "": it has none
    """

    strategy: str
    batch: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStrategy:
    """A strategy with its price.

    Attributes:
        setting: as it was written
        problem: with the devices and the batch that the strategy takes
        candidate: with its costs
        fit: whether every rank has the memory of a device that it needs, and with what
        notes: on what was chosen for the user
        training: of the tokens that were asked for; None: none were
    """

    setting: Setting
    problem: AnalyticalProblem
    candidate: AnalyticalCandidate
    fit: DeviceFit
    notes: tuple[str, ...] = ()
    training: Outlook | None = None

    @property
    def host(self) -> HostMemory:
        """What it takes of each host."""
        return host_memory(self.problem, self.candidate.strategy)

    @property
    def fits(self) -> bool:
        """Whether `plan` takes it: devices and hosts have the memory."""
        return self.candidate.memory.peak <= self.problem.memory_limit and self.host.fits

    @property
    def verdict(self) -> Verdict:
        """Of devices and hosts."""
        return self.fit.verdict if self.fits else "does not fit"

    @property
    def words(self) -> str:
        """The same in a phrase."""
        host = ""
        if self.host.needed:
            room = "a memory that is not known" if self.host.room is None else format_bytes(self.host.room)
            host = f"{format_bytes(self.host.needed)} of {room} of each host"
        said = self.fit.words
        if host and not self.host.fits:
            return f"does not fit: its optimizer's state takes {host}; of a device it {said}"
        return f"{said}; {host}" if host else said

    @property
    def memory_parts(self) -> dict[str, int]:
        """Memory of the rank that needs most, by part [bytes]."""
        memory = self.candidate.memory
        return {name: nbytes for name, nbytes in memory._asdict().items() if name != "stage"}

    @property
    def tokens_per_s(self) -> float:
        """Of all devices."""
        return self.problem.batch * self.problem.sample_tokens / self.candidate.step_time_s

    @property
    def tokens_per_s_per_device(self) -> float:
        """Of each device in use."""
        return self.tokens_per_s / self.candidate.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedStrategy:
    """A strategy of a file that cannot be priced.

    Attributes:
        setting: as it was written
        error: the reason
    """

    setting: Setting
    error: TrimaranError


class Pricing:
    """Prices strategies of one job on one machine.

    Attributes:
        backend: of plans for the same job, with the machine, the precision and the software
    """

    def __init__(self, source: JobSource, request: PlanRequest) -> None:
        """Nothing is priced yet.

        Args:
            source: where the job comes from
            request: with a cluster; of its pins, types of gradients and of the optimizer's state are of strategies
                that do not say them

        Raises:
            InputError: no cluster, a job that the analytical model does not know, or a price of devices without the
                length of a training
        """
        if request.is_here:
            raise InputError(
                "strategies are priced for a target cluster: say --cluster, such as dgx-h100:16",
                code="price.no-cluster",
            )
        check_price(request.target, says_length=request.target.tokens is not None)
        shape = decoder_shape(source.reference, request)
        if shape is None:
            resolve(source.reference)  # a job that is not there is refused as by every command
            raise InputError(
                f"{source.reference} is no transformer that the analytical model knows: `trimaran plan "
                f"{source.reference} --cluster {request.cluster}` traces and simulates it, with the same --strategy",
                code="price.not-a-decoder",
                reference=source.reference,
            )
        self.backend = Analytical(source, request, shape)
        self._models: dict[Cell, AnalyticalModel] = {}

    @property
    def software(self) -> str:
        """The framework whose kernels are assumed, with its year, as in `Planned.software`."""
        request = self.backend.request
        return (request.software or assumed_software(find_machine(request.cluster).node.device)).text

    @property
    def notes(self) -> tuple[str, ...]:
        """What is assumed for all strategies."""
        return () if self.backend.request.software is not None else (f"software assumed: {self.software}",)

    def price(self, setting: Setting) -> PricedStrategy:
        """A strategy with its price.

        Args:
            setting: as it was written

        Raises:
            InputError: a word that means nothing, or degrees that contradict the devices, the batch or each other
        """
        request, backend = self.backend.request, self.backend
        batch = whole_number(setting.batch, least=1) if setting.batch else request.batch
        if setting.batch and batch is None:
            raise InputError(
                f'strategy "{setting.strategy}": its batch is "{setting.batch}", expected a number of sequences',
                code="price.bad-batch",
                batch=setting.batch,
            )
        found = complete_strategy(
            setting.strategy,
            backend.shape,
            most_devices=find_machine(request.cluster).devices,
            devices=request.devices,
            batch=batch,
            usual_batch=backend.batch,
        )
        cell = Cell(batch=found.batch, devices=found.strategy.devices)
        if cell not in self._models:
            self._models[cell] = AnalyticalModel(problem=backend.problem(cell, None))
        model, pins = self._models[cell], request.pins
        problem = model.problem
        strategy = replace(
            found.strategy,
            gradients=found.strategy.gradients or pins.gradients,
            optimizer_state=found.strategy.optimizer_state or pins.optimizer_state,
            sequence_parallel=found.strategy.sequence_parallel and problem.program.year >= SEQUENCE_PARALLEL,
        )
        check_framework(problem.framework, zero=strategy.zero, some_layers=strategy.recompute_layers is not None)
        fit = judge_fit(
            problem.shape,
            strategy,
            keeping=problem.bookkeeping,
            device_bytes=problem.device_bytes,
            reserve=problem.reserve,
        )
        candidate = model.price(strategy, model.taken(strategy).admitted(strategy))
        tokens = request.target.tokens is not None
        return PricedStrategy(
            setting=setting,
            problem=problem,
            candidate=candidate,
            fit=fit,
            notes=found.notes,
            training=training_of_tokens(backend, candidate, found.batch) if tokens else None,
        )

    def ways(self, priced: PricedStrategy) -> tuple[Way, ...]:
        """What would fit in place of a strategy that does not; nothing where it does.

        Args:
            priced: by this
        """
        if priced.fits:
            return ()
        request, said = self.backend.request, read_strategy(priced.setting.strategy)
        pins = parse_pins(
            strategy=priced.setting.strategy,
            gradients=None if said.gradients else request.pins.gradients,
            optimizer_state=None if said.optimizer_state else request.pins.optimizer_state,
        )
        asked = replace(request, pins=pins, batch=priced.problem.batch, target=NO_TARGET)
        return ways(asked, lambda other: find_backend(self.backend.source, other))

    def price_each(self, settings: Sequence[Setting]) -> list[PricedStrategy | RefusedStrategy]:
        """Strategies with their prices, in the given order; one that is refused does not end the others.

        Args:
            settings: as they were written
        """
        found: list[PricedStrategy | RefusedStrategy] = []
        for setting in settings:
            try:
                found.append(self.price(setting))
            except TrimaranError as error:
                found.append(RefusedStrategy(setting=setting, error=error))
        return found


# ---------------------------------------------------------------------------------------------------------------------
# Files of strategies


_STRATEGY_COLUMNS = ("strategy", "degrees")
_NAME_COLUMNS = ("name", "run")
_BATCH_COLUMNS = ("batch", "global_batch")
_WORD_COLUMNS = ("dp", "pp", "tp", "cp", "ep", "etp", "vp", "mb", "m", "zero", "hsdp")

MOST_STRATEGIES = 10_000
"""Of a file."""


def read_settings(path: Path) -> list[Setting]:
    """The strategies of a file.

    A file of lines has a strategy on each; empty lines and those that start with "#" say nothing. A table (`.csv`) has
    a column `strategy` (or `degrees`), or one for each degree (`tp`, `pp`, … with figures, and `recompute`); `name` (or
    `run`) and `batch` (or `global_batch`) may be there too, and other columns say nothing.

    Args:
        path: of the file

    Raises:
        InputError: no such file, nothing in it, or a table without strategies
    """
    text = read_text(given(path))
    try:
        found = list(_of_table(text, path) if path.suffix.lower() == ".csv" else _of_lines(text))
    except csv.Error as error:
        raise InputError(f"{path}: {error}", code="price.unreadable-table", path=str(path)) from error
    if not found or len(found) > MOST_STRATEGIES:
        raise InputError(
            f"{path} has {len(found)} strategies, expected 1 to {MOST_STRATEGIES:,}: write one on each line, such as "
            '"tp8 pp4 dp2 zero1 mb1"',
            code="price.number-of-strategies",
            path=str(path),
        )
    return found


def _of_lines(text: str) -> Iterator[Setting]:
    for line in text.splitlines():
        words = line.partition("#")[0].strip()
        if words:
            yield Setting(strategy=words)


def _of_table(text: str, path: Path) -> Iterator[Setting]:
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    columns = [column.strip() for column in rows.fieldnames or ()]
    if not {*_STRATEGY_COLUMNS, *_WORD_COLUMNS} & set(columns):
        raise InputError(
            f"{path} has the columns {', '.join(columns) or 'none'}, and none of a strategy: name one `strategy`, or "
            f"one for each degree ({', '.join(_WORD_COLUMNS)})",
            code="price.no-strategy-column",
            path=str(path),
        )
    for row in rows:
        cells = {(key or "").strip(): (value or "").strip() for key, value in row.items() if isinstance(value, str)}
        yield Setting(
            strategy=_first(cells, _STRATEGY_COLUMNS) or " ".join(_words(cells)),
            batch=_first(cells, _BATCH_COLUMNS),
            name=_first(cells, _NAME_COLUMNS),
        )


def _first(cells: Mapping[str, str], columns: Sequence[str]) -> str:
    return next((cells[column] for column in columns if cells.get(column)), "")


def _words(cells: Mapping[str, str]) -> Iterator[str]:
    """The words of a row that has a column for each degree."""
    for column in _WORD_COLUMNS:
        if cells.get(column):
            yield f"{column}{cells[column]}"
    if cells.get("recompute"):
        yield f"recompute:{cells['recompute']}"
