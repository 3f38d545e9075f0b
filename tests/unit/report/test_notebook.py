"""Plans and reports of runs display themselves in a notebook: verdict, table, nothing that could run."""

from dataclasses import replace

from tests import builders
from tests.unit.report.pages import HOSTILE, small_plan
from tests.unit.report.test_files import REPORT

from trimaran.program.json_files import to_plain
from trimaran.report.memory import LiveCurve
from trimaran.report.run_report import RecordedStep


def test_a_plan_shows_its_verdict_and_its_candidates() -> None:
    found = small_plan()._repr_html_()
    assert found.startswith(
        "<div><p><strong>digits on 2 × one core: pp2 1f1b is predicted at 9.00 s a step (90 %: 8.50 s to 9.50 s), "
        "0.889 samples/s; 1.11 times the speed of the best baseline, dp2.</strong></p><table>"
    )
    assert found.count("<tr>") == 4  # the head and three candidates with a predicted step
    assert "rejected" not in found


def test_a_plan_without_a_prediction_says_so() -> None:
    nothing = builders.prediction(step_time_s=0.0, interval_s=(0.0, 0.0), peak_bytes=())
    found = replace(small_plan(), prediction=nothing, candidates=())._repr_html_()
    assert "the plan predicts no time." in found


def test_a_report_of_a_run_shows_predicted_and_measured_by_rank() -> None:
    """9 s predicted, 10 s measured."""
    found = REPORT._repr_html_()
    assert "a step took 10.0 s and was predicted at 9.00 s (10 % too short)" in found
    assert "rank 1, forward" in found
    assert "noise of repeated runs unknown here: trimaran doctor --measure" in found


def test_a_verdict_says_that_the_machine_was_busy() -> None:
    assert "while other programs took 81 % of the cores." in replace(REPORT, others=0.81)._repr_html_()
    assert "other programs" not in replace(REPORT, others=0.05)._repr_html_()


def test_a_report_without_a_measurement_claims_none() -> None:
    found = replace(REPORT, measured=RecordedStep(), by_rank=None)._repr_html_()
    assert "nothing was measured." in found
    assert '<td class="figure">–</td>' in found


def test_hostile_names_stay_texts() -> None:
    for found in (small_plan(HOSTILE)._repr_html_(), replace(REPORT, job=HOSTILE, notes=(HOSTILE,))._repr_html_()):
        assert "<script" not in found
        assert "<img" not in found
        assert "\x1b" not in found


def test_live_memory_says_when_each_change_is() -> None:
    curve = LiveCurve(seconds=(1.0, 0.5, 1.0), phases=("FP", "BP", "BP"), kept_bytes=(4, 4, 8), plan_bytes=(4, 4, 6))
    assert to_plain(curve)["time_s"] == [0.0, 1.0, 1.5]
