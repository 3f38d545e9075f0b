import json
import re
from dataclasses import replace

import msgspec
import pytest
from tests.unit.measure.observe.observed import FACTS, make_record

from trimaran.base.remedies import Remedy
from trimaran.features.diagnose.observe import conclude
from trimaran.features.diagnose.remedies import COMPUTE, advise, doubt, name_limiter, noise_of, widened
from trimaran.measure.observe.analysis import analyse
from trimaran.measure.observe.records import ProcessRecord
from trimaran.program.json_files import to_plain
from trimaran.report.observation import Observation, limit_words

LOADER = {"workers": 0, "batch_size": 8, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}


@pytest.fixture(autouse=True)
def _handover(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured of a busy machine would decide otherwise."""
    monkeypatch.setattr("trimaran.features.diagnose.observe.measure_handover", lambda _, busy: 1e-5)


def advised(*records: ProcessRecord) -> dict[str, Remedy]:
    return {remedy.name: remedy for remedy in advise(analyse(records), handover=lambda nbytes: nbytes * 1e-6)}


def limiter(*records: ProcessRecord) -> str:
    return name_limiter(advise(analyse(records), handover=lambda _: 0.0))


def test_workers_take_over_loading_but_not_the_arrival() -> None:
    """10 ms a step, 6 of them loading: two workers load a batch in 3 ms, so 4 ms of work and 1 ms of arrival remain."""
    record = make_record([{"load": 6, "forward": 4}] * 40, loader=LOADER)
    remedy = advised(record)["load in 2 workers"]
    assert remedy.predicted_gain == pytest.approx(0.5)
    assert remedy.setting == {"workers": 2}
    assert limiter(record) == "loader"


def test_workers_are_held_by_the_cores_when_loading_computes() -> None:
    """Loading is all computing: 10 ms of processor time a step are 10 ms on one core, however many workers."""
    step = {"load": 6, "forward": 4, "load_cpu_ns": 6e6}
    assert not advised(make_record([step] * 40, loader=LOADER, cores=1))


def test_accumulation_saves_exchange_and_update() -> None:
    """(6 + 2) × 3/4 of 10 ms."""
    steps = [{"forward": 2, "exposed": 6, "update": 2}] * 40
    ranks = [make_record(steps, rank=rank, world=2) for rank in range(2)]
    assert advised(*ranks)["accumulate 4 steps"].predicted_gain == pytest.approx(0.6)
    assert limiter(*ranks) == "exchange"


def test_half_the_bytes_save_half_of_the_whole_exchange_where_some_of_it_is_hidden() -> None:
    """4 ms of 10 are exposed, the exchange takes 6: halved it takes 3, of which 2 were hidden, so 1 remains of 4."""
    ddp = {"backend": "gloo", "comm_hook": "", "buckets": "", "exchange_ns": 6e6, "overlapped_ns": 2e6}
    steps = [{"forward": 6, "exposed": 4}] * 40
    ranks = [make_record(steps, rank=rank, world=2, model=FACTS["model"] | {"ddp": ddp}) for rank in range(2)]
    assert advised(*ranks)["send bf16 gradients"].predicted_gain == pytest.approx(0.3)


def test_logging_seldom_saves_blocked_collectives_and_reads() -> None:
    """(4 + 1) × 9/10 of 10 ms."""
    steps = [{"forward": 5, "collective": 4, "sync": 1, "syncs": 1}] * 40
    ranks = [make_record(steps, rank=rank, world=2) for rank in range(2)]
    assert advised(*ranks)["log every 10 steps"].predicted_gain == pytest.approx(0.45)
    assert limiter(*ranks) == "synchronisation"


@pytest.mark.parametrize("model", [{"gradient_nbytes": 2000}, {"fsdp": True}])
def test_collectives_that_carry_the_gradients_are_no_metrics(model: dict[str, object]) -> None:
    """1000 bytes a step are half of the gradients': only the read of 1 ms of 10 can wait."""
    steps = [{"forward": 5, "collective": 4, "sync": 1, "syncs": 1, "collective_nbytes": 1000}] * 40
    ranks = [make_record(steps, rank=rank, world=2, model=FACTS["model"] | model) for rank in range(2)]
    assert advised(*ranks)["log every 10 steps"].predicted_gain == pytest.approx(0.09)


def test_every_batch_of_a_step_has_to_arrive() -> None:
    """6 of 10 ms load two batches; each takes 1 ms to arrive, so 4 + 2 ms remain. Shards are the dataset's to make."""
    record = make_record([{"load": 6, "forward": 4, "batches_loaded": 2}] * 40, loader=LOADER | {"iterable": True})
    remedy = advised(record)["load in 2 workers"]
    assert remedy.predicted_gain == pytest.approx(0.4)
    assert "IterableDataset" in (remedy.assumption or "")


def test_an_arrival_that_could_not_be_measured_is_told() -> None:
    record = make_record([{"load": 6, "forward": 4}] * 40, loader=LOADER)
    remedies = advise(analyse([record]), handover=lambda _: None)
    assert "could not be measured" in (remedies[0].assumption or "")


def test_a_larger_batch_by_what_the_copy_took() -> None:
    """Twice the batch takes 1.2 times as long: 8 ms become 4.8 ms, update and other 2 ms become 1 ms, of 10 ms."""
    again = {"factors": [1, 2], "durations_s": [[0.01], [0.012]], "operators": 9, "pointwise": 0, "operator_s": 1e-6}
    record = make_record([{"forward": 8, "update": 1, "other": 1}] * 40, again=again)
    assert advised(record)["batch ×2"].predicted_gain == pytest.approx(0.42)
    assert limiter(record) == "small kernels"


def test_without_a_remedy_worth_naming_the_script_computes() -> None:
    assert limiter(make_record([{"forward": 10}] * 40)) == COMPUTE


def test_every_interval_holds_its_gain() -> None:
    steps = [{"load": 1 + number % 7, "forward": 5} for number in range(60)]
    for remedy in advised(make_record(steps, loader=LOADER)).values():
        low, high = remedy.gain_interval
        assert low < remedy.predicted_gain < high


def doubted(*records: ProcessRecord) -> str | None:
    findings = analyse(records)
    return doubt(findings, advise(findings, handover=lambda _: 0.0), handover=lambda _: 0.0)


def test_a_run_whose_halves_are_limited_by_other_things_is_doubted() -> None:
    """Of 10 ms, 6 are loading in the first half, and reading values in the second: 3/10 either way for the whole."""
    loads = {"load": 6, "forward": 4}
    reads = {"sync": 6, "syncs": 1, "forward": 4}
    said = doubted(make_record([loads] * 35 + [reads] * 30, loader=LOADER))
    assert said is not None
    assert "the first half of the steps is limited by loader, the second by synchronisation" in said
    assert doubted(make_record([loads] * 65, loader=LOADER)) is None
    assert doubted(make_record([{"forward": 10}] * 65)) is None


def test_an_observation_whose_limiter_is_not_clear_names_the_remedies_alone_that_surely_help() -> None:
    """JSON and the page of a report named all of them, where the command said that none is sure."""
    loads = {"load": 6, "forward": 4}
    reads = {"sync": 6, "syncs": 1, "forward": 4}
    records = [make_record([loads] * 35 + [reads] * 30, loader=LOADER)]
    assert any(one.gain_interval[0] <= 0 for one in advise(analyse(records), handover=lambda _: 0.0))
    seen = conclude(records)
    assert seen.limiter == "not clear"
    assert all(one.gain_interval[0] > 0 for one in seen.remedies)


def test_a_best_remedy_that_may_as_well_lengthen_the_step_names_no_limiter() -> None:
    """Of the whole run it saves 0.4; its interval goes from -0.3 on. One that surely saves something is believed."""
    findings = analyse([make_record([{"load": 4, "forward": 6}] * 65, loader=LOADER)])
    best, *others = advise(findings, handover=lambda _: 0.0)
    wide = replace(best, gain_interval=(-0.3, 0.95))
    said = doubt(findings, [wide, *others], handover=lambda _: 0.0)
    assert said is not None
    assert re.search(r"steps differ too much: .* interval of -30% to 95%", said)
    assert doubt(findings, [best, *others], handover=lambda _: 0.0) is None


@pytest.mark.parametrize(
    ("queued_ms", "threads", "said"),
    [(3, 1, None), (7, 1, "waited 70% of the time for a processor.*Run it alone"), (7, 8, "set OMP_NUM_THREADS")],
)
def test_a_thread_that_waits_for_a_processor_longer_than_a_remedy_leads_is_doubted(
    queued_ms: int, threads: int, said: str | None
) -> None:
    """Two workers save half of the step, and without them nothing would save more than 5 %."""
    steps = [{"load": 6, "forward": 4, "queued_ns": queued_ms * 1e6}] * 65
    found = doubted(make_record(steps, loader=LOADER, threads=threads))
    assert found is None if said is None else re.search(said, found or "")


SLEEPS = {"load": 6, "forward": 4, "queued_ns": 4e6, "load_asleep_ns": 4.5e6}
"""Of 10 ms the process sleeps 4.5 while it loads; of the other 5.5 it computes 1.5 and waits 4 for a processor."""


@pytest.mark.parametrize(
    ("step", "loader", "others", "limiter", "guess"),
    [
        # It is asleep for 4.5 of the 6 ms that it would take alone; workers would save most of that.
        (SLEEPS, {}, 0.9, "loader", ""),
        # The machine is full, and the thread that trains is never kept waiting.
        ({"load": 7, "forward": 3, "load_asleep_ns": 6.5e6}, {}, 1.0, "loader", ""),
        # Nine tenths of the step in line for a processor.
        ({"load": 30, "forward": 70, "queued_ns": 90e6, "load_asleep_ns": 8e6}, {}, 0.9, "loader", ""),
        # It computes what it loads: how long is known, whatever it waited for a processor.
        (SLEEPS | {"load_asleep_ns": 0, "load_cpu_ns": 1e6, "queued_ns": 9e6}, {}, 0.9, "loader", ""),
        # Workers load, and whether they compute is not seen.
        (SLEEPS | {"queued_ns": 6e6}, {"workers": 1}, 0.9, "not clear", "loader"),
        # It sleeps a little, which says nothing of the rest.
        ({"load": 1, "forward": 9, "queued_ns": 8e6, "load_asleep_ns": 0.1e6}, {}, 0.9, "not clear", "compute"),
        # Nothing else runs: what it sleeps needs no second proof.
        ({"load": 6, "forward": 4, "load_asleep_ns": 6e6}, {}, 0.0, "loader", ""),
    ],
)  # fmt: skip
def test_a_loader_that_sleeps_is_named_on_a_busy_machine_and_another_one_is_guessed(
    step: dict[str, float],
    loader: dict[str, int],
    others: float,
    limiter: str,
    guess: str,
) -> None:
    seen = conclude([make_record([step] * 65, loader=LOADER | loader, cores=16)], others=others)
    assert (seen.limiter, seen.guess) == (limiter, guess)
    words = "".join(limit_words(seen))
    assert words.startswith(f"Best guess: {guess}. What limits it is not clear" if guess else f"Limited by {limiter}.")
    if limiter == "loader":
        assert seen.remedies[0].limiter == "loader"
        assert seen.remedies[0].gain_interval[0] > 0


@pytest.mark.parametrize(
    ("cpu_ms", "named"),
    [((10, 24), "slow rank"), ((24, 10), "slow rank"), ((10, 15), "not clear"), ((10, 10), "not clear")],
)
def test_a_rank_that_computes_longer_is_named_on_a_busy_machine(cpu_ms: tuple[int, int], named: str) -> None:
    """Rank 0 waits longer for a processor, so that its steps look longer; others lengthen work by half at most."""
    ranks = [
        make_record(
            [{"forward": wall, "exposed": 120 - wall, "queued_ns": (wall - cpu) * 1e6, "cpu": cpu}] * 65,
            rank=rank,
            world=2,
        )
        for rank, (wall, cpu) in enumerate(zip((110, 60), cpu_ms, strict=True))
    ]
    seen = conclude(ranks, others=0.9)
    assert seen.limiter == named
    if named == "slow rank":
        assert seen.remedies[0].setting == {"rank": cpu_ms.index(24)}
        assert seen.remedies[0].predicted_gain == pytest.approx(1 - 17 / 24, abs=0.01)


def test_what_sleeps_in_half_of_the_run_is_not_surely_the_limiter() -> None:
    still = {"forward": 10, "queued_ns": 7e6}
    seen = conclude([make_record([SLEEPS] * 35 + [still] * 30, loader=LOADER)], others=0.9)
    assert seen.limiter == "not clear"


@pytest.mark.parametrize(
    ("threads", "world", "cores", "queued_ms", "each"),
    [(8, 1, 4, 5, 4), (4, 2, 4, 5, 2), (3, 4, 2, 9, 1), (4, 1, 4, 5, None), (8, 1, 4, 0, None)],
)
def test_more_threads_than_cores_are_a_remedy_with_the_number_that_fits(
    threads: int, world: int, cores: int, queued_ms: int, each: int | None
) -> None:
    steps = [{"forward": 10, "queued_ns": queued_ms * 1e6}] * 65
    ranks = [make_record(steps, rank=rank, world=world, threads=threads, cores=cores) for rank in range(world)]
    seen = conclude(ranks, others=0.0)
    named = [remedy for remedy in seen.remedies if remedy.id == "fewer-threads"]
    assert [remedy.setting for remedy in named] == ([] if each is None else [{"threads": each}])
    for remedy in named:
        assert seen.guess == "threads"
        assert remedy.gain_interval == (0.0, pytest.approx(queued_ms / 10))
        assert f"OMP_NUM_THREADS={each}" in str(seen)


@pytest.mark.parametrize("times", [[1, 90], [0.1] * 9 + [500], [3, 3]])
def test_no_interval_of_a_time_begins_below_zero(times: list[float]) -> None:
    """Blocks of few long steps and many short ones; as JSON it is read again."""
    steps = [{"forward": times[number // 7 % len(times)], "queued_ns": 1e6} for number in range(84)]
    seen = conclude([make_record(steps)], others=0.97)
    assert 0.0 <= seen.interval_s[0] <= seen.step_time_s <= seen.interval_s[1]
    plain = json.loads(json.dumps(to_plain(seen)))
    assert msgspec.convert(plain, Observation, strict=False).interval_s == pytest.approx(seen.interval_s)


def test_intervals_hold_what_blocks_and_rounds_differ_by() -> None:
    """The copy takes 0.6 times as long a sample for twice the batch in the first rounds, and 0.8 times in the last."""
    again = {
        "factors": [1, 2],
        "durations_s": [[0.01] * 10, [0.012] * 5 + [0.016] * 5],
        "operators": 9,
        "pointwise": 0,
        "operator_s": 1e-6,
    }
    low, high = advised(make_record([{"forward": 10}] * 65, again=again))["batch ×2"].gain_interval
    assert low <= 0.2 + 1e-9
    assert high >= 0.4 - 1e-9
    drifting = [{"sync": 4, "syncs": 1, "forward": 6}] * 35 + [{"sync": 6, "syncs": 1, "forward": 4}] * 30
    low, high = advised(make_record(drifting))["log every 10 steps"].gain_interval
    assert low <= 0.9 * 0.4 + 1e-9
    assert high >= 0.9 * 0.6 - 1e-9


def test_lines_that_wait_are_named_and_a_librarys_are_told() -> None:
    place = {"kind": "collective", "line": "lib/loop.py:7", "function": "sync", "library": True, "calls": 40, "ns": 9}
    steps = [{"forward": 5, "collective": 4, "sync": 1, "syncs": 1}] * 40
    ranks = [make_record(steps, rank=rank, world=2, places=[place]) for rank in range(2)]
    remedy = advised(*ranks)["log every 10 steps"]
    assert "lib/loop.py:7 in sync (100%)" in remedy.basis
    assert "library" in remedy.assumption


def test_a_script_that_accumulates_is_told_what_it_may_do_at_no_price() -> None:
    again = {"factors": [1, 2], "durations_s": [[0.01], [0.012]], "operators": 9, "pointwise": 0, "operator_s": 1e-6}
    steps = [{"forward": 4, "exposed": 4, "update": 2, "backwards": 3}] * 40
    ranks = [make_record(steps, rank=rank, world=2, again=again) for rank in range(2)]
    found = advised(*ranks)
    assert "3 times the batch in one piece" in found["batch ×2"].action
    assert "once in 12 backwards, not in 3" in found["accumulate 4 steps"].action
    # Several networks that take turns do not accumulate.
    turns = advised(*(make_record(steps, rank=rank, world=2, again=again, other_optimizers=True) for rank in range(2)))
    assert "in one piece" not in turns["batch ×2"].action
    assert "once in 4 backwards (" in turns["accumulate 4 steps"].action


def test_a_lead_below_the_noise_of_other_programs_is_doubted_and_intervals_hold_the_noise() -> None:
    """Workers save 0.4 of the step at most; other programs on all cores may add as much to any part of it."""
    findings = analyse([make_record([{"load": 4, "forward": 6}] * 65, loader=LOADER)])
    remedies = advise(findings, handover=lambda _: 0.0)

    def said(others: float | None) -> str | None:
        return doubt(findings, remedies, handover=lambda _: 0.0, others=others)

    assert said(None) is None
    assert said(0.3) is None
    assert "other programs took 95%" in str(said(0.95))
    assert noise_of(findings, 0.02) == 0.0
    noise = noise_of(findings, 0.5)
    assert noise == pytest.approx(0.25)
    for before, after in zip(remedies, widened(remedies, noise), strict=True):
        low, high = after.gain_interval
        assert low <= before.gain_interval[0] - noise + 1e-9
        assert high >= min(1.0, before.gain_interval[1] + noise) - 1e-9


@pytest.mark.parametrize(("total", "named"), [(2**40, True), (2**20, False), (None, True)])
def test_a_batch_that_memory_does_not_hold_is_not_advised(total: int | None, named: bool) -> None:
    """The process has 1 MiB at most with the batch in use."""
    again = {
        "factors": [1, 2],
        "durations_s": [[0.01] * 10, [0.012] * 10],
        "operators": 9,
        "pointwise": 0,
        "operator_s": 1e-6,
    }
    memory = FACTS["memory"] | {"total_nbytes": total}
    found = advised(make_record([{"forward": 10}] * 65, again=again, memory=memory))
    assert ("batch ×2" in found) is named
