"""Which model answers for a decoder: the question decides, and both agree where both can answer."""

import dataclasses
import subprocess
import sys

import pytest
from tests.raising import raises

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_bytes
from trimaran.features.price import Pricing, Setting
from trimaran.jobs.resolve import JobSource
from trimaran.planner.pins import Pins, pins_of_strategy
from trimaran.planning.analytical import Analytical, planned_by_shape, reason_to_trace, shape_of
from trimaran.planning.answer.evidence import Modelled
from trimaran.planning.estimated import Estimated
from trimaran.planning.plan import find_backend, make_plan
from trimaran.planning.requests import Loading, PlanRequest, parse_request

SMALL, LARGE = "gpt2:1.5b", "llama2:70b"


def asked(**options: object) -> PlanRequest:
    return parse_request(**{"cluster": "dgx-h100:2", "batch": 64} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize("devices", [1, 8, 64, 72])
def test_a_decoder_has_one_model_on_any_number_of_devices(devices: int) -> None:
    request = asked(cluster="dgx-h100:9", devices=devices, batch=144)
    planned = make_plan(SMALL, request)
    assert isinstance(planned.evidence, Modelled)
    assert planned.chosen.devices <= devices
    assert "torch" not in vars(sys.modules["trimaran.planning.analytical"])


ONLY_SIMULATED = (
    ({"execution": "compiled"}, "--execution compiled"),
    ({"pins": Pins(keep=(("layer4", 1),))}, "--keep"),
    ({"pins": Pins(schedule="gpipe")}, "--schedule gpipe"),
    ({"pins": Pins(compression="fp16")}, "--compression fp16"),
    ({"pins": Pins(allow=("placement",))}, "--allow placement"),
)


@pytest.mark.parametrize(("options", "option"), ONLY_SIMULATED, ids=lambda one: one if isinstance(one, str) else "")
def test_what_only_a_simulation_answers_is_simulated_and_said_or_refused(
    options: dict[str, object], option: str
) -> None:
    """Small ones are simulated with a note; large ones, which no option is ignored for, are refused."""
    request = asked(**options)
    assert shape_of(SMALL, request) is None
    assert reason_to_trace(SMALL, request).startswith(option)
    assert isinstance(find_backend(JobSource(reference=SMALL), request), Estimated)
    with pytest.raises(InputError):
        make_plan(LARGE, request)


@pytest.mark.parametrize("software", ["pytorch:2024", "trimaran", "fsdp:2024"])
def test_software_changes_constants_and_never_the_kind_of_model(software: str) -> None:
    planned = make_plan(SMALL, asked(software=software, pins=pins_of_strategy("dp8 zero2 mb8"), devices=8))
    assert isinstance(planned.evidence, Modelled)
    with raises("software.not-priced"):
        make_plan(SMALL, asked(software="mxnet:2018"))


def test_modules_of_pytorch_take_longer_under_autocast_than_with_a_policy_of_fsdp() -> None:
    """Products cast what they read, and the residual stream has 32 bits; Trimaran's runtime trains in this way too."""
    steps = {
        software: make_plan(SMALL, asked(software=software, pins=pins_of_strategy("dp8 zero2 mb8"), devices=8)).chosen
        for software in ("pytorch:2024", "trimaran", "fsdp:2024")
    }
    assert steps["trimaran"].step_time_s == steps["pytorch:2024"].step_time_s > 1.1 * steps["fsdp:2024"].step_time_s


def test_replicas_have_one_microbatch_unless_words_say_otherwise() -> None:
    """As the same words of a program: what DDP does with a batch."""
    request = asked(cluster="dgx-h100", devices=8, batch=64, pins=pins_of_strategy("dp8"))
    assert make_plan("gpt2:124m", request).chosen.strategy.microbatches == 1
    large = dataclasses.replace(request, pins=pins_of_strategy("dp8 zero3"))
    with pytest.raises(InfeasibleError, match="one microbatch of 8 sequences") as refused:
        make_plan("llama3:8b", large)
    assert "smaller-microbatches" in [way.id for way in refused.value.figures["ways"]]


def test_the_time_of_an_epoch_is_known_of_this_machine_alone() -> None:
    with raises("target.epoch-objective"):
        asked(objective="epoch")


def test_an_option_of_programs_is_refused_where_the_analytical_model_plans() -> None:
    with raises("analytical.option-unsupported", match="--execution compiled"):
        make_plan(LARGE, asked(execution="compiled"))


def test_nothing_that_is_not_asked_for_is_simulated() -> None:
    assert reason_to_trace(SMALL, asked()) == ""
    assert isinstance(find_backend(JobSource(reference=SMALL), asked()), Analytical)
    assert isinstance(find_backend(JobSource(reference="resnet50"), asked()), Estimated)


def test_a_plan_of_a_decoder_does_without_torch() -> None:
    code = (
        "import sys\n"
        "from trimaran.cli.views.plans import show_plan\n"
        "from trimaran.planning.plan import make_plan\n"
        "from trimaran.planning.requests import parse_request\n"
        "make_plan('llama3:8b', parse_request(cluster='dgx-h100', batch=64))\n"
        "raise SystemExit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


@pytest.mark.sweep
@pytest.mark.parametrize(("devices", "batch"), [(2, 16), (4, 64)])
def test_both_models_choose_alike_where_both_can(devices: int, batch: int) -> None:
    """Replicas of a small decoder: the same degrees, each by the software that it knows."""
    request = asked(cluster="dgx-a100", devices=devices, batch=batch)
    source = JobSource(reference="gpt2:124m")
    source = dataclasses.replace(source, global_batch_size=batch)
    modelled = make_plan(source, request)
    simulated = Estimated(source, request).plan()
    assert isinstance(modelled.evidence, Modelled)
    one, other = modelled.chosen.strategy, simulated.chosen.strategy
    assert (one.dp, one.pp, one.tp) == (other.dp, other.pp, other.tp)


def test_what_means_nothing_there_is_refused() -> None:
    for option in ("oversubscribe", "accept_inexact"):
        with pytest.raises(InputError, match=f"--{option.replace('_', '-')}"):
            asked(**{option: True})


def test_a_strategy_as_plans_print_it_is_planned_by_the_analytical_model() -> None:
    """Replicas have the usual size of buckets, which the model has too; another one is refused."""
    planned = make_plan(LARGE, asked(pins=pins_of_strategy("dp2 tp8 zero3 m32 recompute")))
    assert planned.chosen.name == "dp2 tp8 zero3 m32 recompute"
    with raises("analytical.option-unsupported", match="size of buckets"):
        make_plan(LARGE, asked(pins=pins_of_strategy("dp16 b1MiB")))


@pytest.mark.parametrize(
    ("job", "words", "batch"),
    [
        ("llama3:8b", "tp2 pp4", 4),
        ("llama3:8b", "tp4", 2),
        ("llama3:8b", "dp4 pp4 zero1 recompute:layers:2", 8),
        ("llama3:8b", "dp4 pp4 zero-bubble zero1", 8),
        ("llama3:8b", "pp4 tp4 vp2 m64 group8", 64),
        ("llama3:8b", "dp16 zero2 bf16-gradients m4", 64),
        ("gpt2", "dp2 pp4 zero-bubble zero1 m8", 64),
        ("mixtral", "tp4 dp2 pp2 ep2 zero1", 4),
    ],
)
def test_what_words_leave_out_is_the_same_for_plan_and_price(job: str, words: str, batch: int) -> None:
    """Replicas 1, a schedule of 1f1b, one microbatch, layers as even as can be."""
    request = parse_request(cluster="dgx-h100:2", devices=16, batch=batch)
    priced = Pricing(JobSource(reference=job), request).price(Setting(strategy=words)).candidate
    planned = make_plan(job, dataclasses.replace(request, pins=pins_of_strategy(words))).chosen
    assert planned.strategy.name == priced.name
    assert (planned.step_time_s, planned.peak_bytes) == (priced.step_time_s, priced.peak_bytes)


def test_a_word_that_the_analytical_model_does_not_have_is_refused_by_its_name() -> None:
    request = parse_request(cluster="dgx-h100:2", batch=64, pins=pins_of_strategy("tp2 pp4 gpipe"))
    with raises("analytical.option-unsupported", match="--strategy .*: gpipe:"):
        make_plan("llama3:8b", request)


def test_a_strategy_that_does_not_fit_is_refused_with_what_it_needs() -> None:
    """With all layers recomputed, which it does not, it would need 18 GiB."""
    request = parse_request(cluster="dgx1-v100:2", batch=64)
    words = "dp2 pp4 tp2 mb2"
    need = Pricing(JobSource(reference="llama3.2:1b"), request).price(Setting(strategy=words)).candidate.need
    with pytest.raises(InfeasibleError, match=f"needs {format_bytes(need.usual)}"):
        make_plan("llama3.2:1b", dataclasses.replace(request, pins=pins_of_strategy(words)))


@pytest.mark.parametrize(
    ("reference", "told"),
    [("absent.py:make", "no file absent.py"), ("llama3:9b", "known: 1b, 3b, 8b"), ("absent.json", "no configuration")],
)
def test_a_job_that_is_not_there_is_told_as_what_it_would_be(reference: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_plan(reference, asked())


def test_scale_knows_which_jobs_plan_prices_by_their_shape() -> None:
    """There the two have other software, which it then says."""
    assert planned_by_shape("gpt2", asked(cluster="dgx1-v100:4")) is not None
    assert planned_by_shape("resnet50", asked(cluster="dgx1-v100:4")) is None
    assert planned_by_shape("bert:large", asked(cluster="dgx1-v100:4")) is None


def test_how_data_are_loaded_is_told_by_the_option_that_said_it() -> None:
    """Experts are never traced, on however few devices."""
    for reference, smaller in ((LARGE, True), ("mixtral:8x7b", False)):
        request = asked(devices=2, loading=Loading(copies_ahead=0))
        with raises("loading.analytical", match="leave --copies-ahead out") as refused:
            make_plan(reference, request)
        assert ("64 devices" in str(refused.value)) is smaller
