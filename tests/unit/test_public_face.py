"""What `import trimaran` offers: its names and signatures."""

import enum
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trimaran

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "golden" / "public_face.txt"
WRITE = os.environ.get("TRIMARAN_GOLDEN") == "write"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


def shown(name: str) -> str:
    """A name with the signature of what it is, without the modules of types; of a class also its public members."""
    found = getattr(trimaran, name)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return f"{name}: {', '.join(one.name for one in found)}"
    signature = re.sub(r"\b[a-z]\w*\.(?:\w+\.)*(?=[A-Z])", "", str(inspect.signature(found)))
    signature = re.sub(r"<function (\w+) at \w+>", r"\1", signature)
    if not isinstance(found, type):
        return f"{name}{signature}"
    ours = [one for one in found.__mro__ if one.__module__.startswith("trimaran.")]
    members = sorted({member for one in ours for member in vars(one) if not member.startswith("_")})
    return f"{name}{signature}: {', '.join(members)}"


def test_names_and_signatures_are_those_on_record() -> None:
    """A change of them owes users a file in changes/; what is on record is written with TRIMARAN_GOLDEN."""
    now = "".join(f"{shown(name)}\n" for name in sorted(trimaran.__all__) if name != "__version__")
    if WRITE:
        KEPT.write_text(now, encoding="utf-8")
    assert KEPT.read_text(encoding="utf-8") == now


@pytest.mark.parametrize("name", [name for name in trimaran.__all__ if name != "__version__"])
def test_a_name_is_documented_and_typed(name: str) -> None:
    found = getattr(trimaran, name)
    assert inspect.getdoc(found)
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        parts = [*signature.parameters.values()]
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(part.annotation is not inspect.Parameter.empty for part in parts)
        said = inspect.getdoc(found) or ""
        assert all(f"{part.name}: " in said for part in parts)


def test_the_face_is_there_without_torch() -> None:
    code = "import sys, trimaran; assert set(trimaran.__all__) <= set(dir(trimaran)); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="trimaran"):
        _ = trimaran.plans


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_import_nothing_deeper(path: Path) -> None:
    assert not re.findall(r"(?:from|import) trimaran\.\S+", path.read_text(encoding="utf-8"))


def test_scaling_takes_one_of_two_batches() -> None:
    """Weak scaling by samples of each device, strong scaling by samples of all."""
    weak = trimaran.predict_scaling("alexnet", cluster="dgx1-v100", devices=(1, 8), local_batch=64)
    strong = trimaran.predict_scaling("alexnet", cluster="dgx1-v100", devices=(1, 8), batch=512)
    assert (weak.mode, strong.mode) == ("weak", "strong")
    assert weak.rows[-1].samples_per_s == pytest.approx(strong.rows[-1].samples_per_s)
    usual = trimaran.predict_scaling("alexnet", cluster="dgx1-v100")
    assert [(row.devices, row.local_batch_size) for row in usual.rows] == [(count, 64) for count in (1, 2, 4, 8)]
    with pytest.raises(trimaran.InputError) as told:
        trimaran.predict_scaling("alexnet", cluster="dgx1-v100", devices=(1,), batch=8, local_batch=8)
    assert told.value.code == "scaling.one-batch"


def test_collectives_of_a_machine_of_the_catalog() -> None:
    """The cost is that of the fastest algorithm."""
    cost = trimaran.collective_cost("all_reduce", 100e6, cluster="dgx1-v100", devices=8)
    fastest, *_ = trimaran.collective_algorithms("all_reduce", 100e6, cluster="dgx1-v100", devices=8)
    assert fastest.seconds == pytest.approx(cost.seconds)


def test_a_plan_for_a_machine_of_the_catalog_and_why_it_is_so() -> None:
    """What is pinned holds; the explanation is of the same plan."""
    planned = trimaran.plan("gpt3:13b", cluster="dgx-a100:2", batch=64, pins=trimaran.Pins(tp=4))
    assert planned.chosen.strategy.tp == 4
    explained = trimaran.explain(planned, why_not=["pp"])
    assert explained.planned.chosen == planned.chosen


def test_an_objective_that_is_none_is_refused() -> None:
    with pytest.raises(trimaran.InputError):
        trimaran.plan("alexnet", cluster="dgx1-v100", objective="speed")
