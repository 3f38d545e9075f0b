"""Do ranks train one model?"""

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.rehearsal.side_by_side import Job, marked_lines, rehearse, summary

import trimaran
from trimaran.rehearsal.one_model import Apart, apart
from trimaran.rehearsal.record import Record

FOLDER = Path(__file__).parent / "one_model"
SEPARATE, PLANTED, ACTIVATIONS = (FOLDER / f"{name}.py" for name in ("separate_models", "planted", "activations"))

LAYERS = {f"layers.{number}.{part}" for number in range(4) for part in ("weight", "bias")}
UPPER = {name for name in LAYERS if name.startswith(("layers.2", "layers.3"))}

# Of four ranks: how many models they would train, and the parameters that are apart.
FAULTS: dict[str, tuple[int, set[str]]] = {
    "none": (4, LAYERS),
    "half": (4, UPPER),
    "pairs": (2, LAYERS),
    "mesh one axis": (2, LAYERS),
    "ddp sync late": (4, LAYERS),
    "ddp sync at first": (4, LAYERS),
    "ddp outside": (4, {"Linear.weight", "Linear.bias"}),
    "ddp added later": (4, {"extra"}),
    "ddp left open": (4, LAYERS),
    "early": (4, LAYERS),
    "copy": (4, LAYERS),
    "late": (4, LAYERS),
}
OTHER_FAULTS: dict[str, tuple[int, set[str]]] = {
    "noted": (4, LAYERS),
    "flat half": (4, UPPER),
    "flat buffer half": (4, UPPER),
    "fsdp outside": (4, {"Linear.weight", "Linear.bias"}),
    "hybrid one axis": (2, LAYERS),
    "tensor without data": (2, LAYERS - UPPER),
    "written back alone": (4, LAYERS),
}
RIGHT = ("ddp accumulate", "flat", "local", "reduced in step", "tree", "hybrid", "tensor", "stages", "written back")
OTHERS_RIGHT = (
    "whole", "mesh whole", "ddp plain", "ddp views", "ddp halved hook", "ddp low rank", "hooks", "flat buffer", "fsdp",
    "fsdp accumulate", "tensor with data", "experts", "gathered", "sharded by hand", "local by difference", "masters",
    "by function", "functional hooks", "averaged in step", "closure", "warmed", "in backward", "accumulated aside",
    "written back by list", "written where it is read",
)  # fmt: skip

# Networks whose ranks give each other activations, and modules whose parameters no rank has again.
OF_ACTIVATIONS = {
    "statistics": (),
    "statistics by hand": (),
    "contrastive": (),
    "contrastive by function": (),
    "contrastive by own function": (),
    "heads": (),
    "experts": ("1.expert.0", "1.expert.2"),
    "experts by gathering": ("1.expert.0", "1.expert.2"),
    "classes": ("3.expert",),
}
ON_DEVICE = ("contrastive", "experts", "shards of one batch")
ONE_BATCH = ("shards", "shards of one batch", "tables")


def rehearsed(kinds: Iterable[str], folder: Path) -> dict[str, list[Record]]:
    return rehearse([Job(kind, PLANTED, 4, (0, 3), (kind,), 3) for kind in kinds], folder)


@pytest.fixture(scope="module")
def of_suite(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    return rehearsed((*FAULTS, *RIGHT), tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def of_sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    return rehearsed((*OTHER_FAULTS, *OTHERS_RIGHT, "by host"), tmp_path_factory.mktemp("planted"))


def judged(records: list[Record]) -> Apart | None:
    assert {record.end.how for record in records} <= {"finished", "steps"}, summary(records)
    return apart(records)


@pytest.mark.parametrize("kind", FAULTS)
def test_parameters_that_ranks_train_apart_are_told(kind: str, of_suite: dict[str, list[Record]]) -> None:
    check_told(of_suite[kind], *FAULTS[kind])


@pytest.mark.sweep
@pytest.mark.parametrize("kind", OTHER_FAULTS)
def test_others_that_ranks_train_apart_are_told(kind: str, of_sweep: dict[str, list[Record]]) -> None:
    check_told(of_sweep[kind], *OTHER_FAULTS[kind])


def check_told(records: list[Record], models: int, parameters: set[str]) -> None:
    found = judged(records)
    assert found is not None, summary(records)
    assert set(found.parameters) == parameters
    assert found.models == models
    assert found.lines[0].line in marked_lines(PLANTED, "# step")


@pytest.mark.parametrize("kind", RIGHT)
def test_ranks_that_train_one_model_raise_no_alarm(kind: str, of_suite: dict[str, list[Record]]) -> None:
    check_right(of_suite[kind])


@pytest.mark.sweep
@pytest.mark.parametrize("kind", OTHERS_RIGHT)
def test_other_ways_to_train_one_model_raise_no_alarm(kind: str, of_sweep: dict[str, list[Record]]) -> None:
    check_right(of_sweep[kind])


def check_right(records: list[Record]) -> None:
    assert judged(records) is None
    assert records[0].updates
    assert all(update.groups for record in records for update in record.updates)


@pytest.mark.sweep
def test_gradients_that_come_from_the_host_are_not_known_and_no_alarm(of_sweep: dict[str, list[Record]]) -> None:
    assert judged(of_sweep["by host"]) is None
    assert {update.groups for record in of_sweep["by host"] for update in record.updates} == {None}


def test_numbers_and_buffers_make_no_model_of_several(tmp_path: Path) -> None:
    kinds = {"never": True, "logged": True, "buffers": True, "weights": False}
    found = rehearse([Job(kind, SEPARATE, 2, (0, 1), (kind,), 3) for kind in kinds], tmp_path)
    assert {kind: judged(records) is not None for kind, records in found.items()} == kinds


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [(SEPARATE, "plain", "2 ranks would train 2 models"), (PLANTED, "half", "4 of 8 parameters")],
)
def test_it_is_the_verdict_with_the_line_and_the_way_out(script: Path, kind: str, said: str) -> None:
    found = trimaran.rehearse(script, [kind], world=2, cluster="dgx-h100")
    assert found.verdict == "disagree", str(found)
    assert said in found.headline
    line = [n for n, text in enumerate(script.read_text().splitlines(), 1) if "optimizer.step()" in text][-1]
    assert f"{script.name}:{line}" in found.headline
    assert "layers.2.weight" in found.headline or kind == "plain"


@pytest.fixture(scope="module")
def of_activations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    cases = [(kind, way, "host") for kind in OF_ACTIVATIONS for way in ("alone", "reduced")]
    cases += [(kind, "alone", "device") for kind in ON_DEVICE]
    cases += [(kind, "alone", "host") for kind in ONE_BATCH]
    jobs = [Job(" ".join(case), ACTIVATIONS, 4, (0, 3), case, 3) for case in cases]
    return rehearse(jobs, tmp_path_factory.mktemp("activations"))


@pytest.mark.parametrize("kind", OF_ACTIVATIONS)
def test_activations_of_other_batches_make_no_model_of_several(
    kind: str, of_activations: dict[str, list[Record]]
) -> None:
    assert judged(of_activations[f"{kind} reduced host"]) is None
    for where in ("host", "device") if kind in ON_DEVICE else ("host",):
        found = judged(of_activations[f"{kind} alone {where}"])
        assert found is not None
        known = {update.parameter for update in of_activations[f"{kind} alone {where}"][0].updates}
        assert set(found.parameters) == {one for one in known if one.rpartition(".")[0] not in OF_ACTIVATIONS[kind]}
        assert found.lines[0].line in marked_lines(ACTIVATIONS, "# step")


@pytest.mark.parametrize("kind", ONE_BATCH)
def test_ranks_of_one_batch_and_tables_of_some_are_one_model(
    kind: str, of_activations: dict[str, list[Record]]
) -> None:
    for where in ("host", "device") if kind in ON_DEVICE else ("host",):
        assert judged(of_activations[f"{kind} alone {where}"]) is None
