"""`trimaran price`: the price of a given strategy is that of the plan, contradictions are refused, files are read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.raising import raises
from typer.testing import CliRunner

from trimaran.base.errors import InputError
from trimaran.cli import app
from trimaran.features.price import PricedStrategy, Pricing, RefusedStrategy, Setting, read_settings
from trimaran.jobs.resolve import JobSource
from trimaran.planning.answer.evidence import Modelled
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import parse_request, parse_target
from trimaran.program.strategy import Strategy, read_strategy

PUBLISHED = (
    "tp8 x pp8 (12 chunks) x dp2, zero1, 16 microbatches of 1",
    "tp4 x dp512, zero1, 4 microbatches of 4",
    "tp8 x cp2 x pp9 (7 chunks) x dp4, zero1, 63 microbatches of 1",
    "cp2 x dp64, zero1, 32 microbatches of 1",
    "tp4 x cp2 x pp8 (8 chunks) x dp8 (ep8), zero1, 128 microbatches of 1",
    "dp128, zero3, recompute, 1 microbatch of 2",
    "tp2 x pp4 x dp12, zero1, recompute, 32 microbatches of 4",
    "tp8 x pp64 x dp6, recompute, 512 microbatches of 1",
)


def pricing(job: str = "llama2:7b", cluster: str = "dgx-h100:2", **asked: object) -> Pricing:
    return Pricing(JobSource(reference=job), parse_request(cluster=cluster, **asked))  # type: ignore[arg-type]


def test_the_price_of_a_strategy_is_that_of_the_plan() -> None:
    # All of a card: the plan would leave a part of it, and take smaller states for that.
    planned = make_plan("llama2:7b", parse_request(cluster="dgx-h100:2", batch=48, reserve="0%"))
    evidence = planned.evidence
    assert isinstance(evidence, Modelled)
    rows = [*evidence.search.candidates, *evidence.search.references]
    assert len(rows) > 3
    for row in rows:
        priced = pricing(reserve="0%").price(Setting(strategy=row.name))
        assert priced.candidate == row
        assert priced.problem.batch == 48


def test_the_degrees_of_published_runs_are_words_of_strategies() -> None:
    found = [read_strategy(text) for text in PUBLISHED]
    assert [one.name for one in found] == [
        "dp2 pp8 interleaved x12 tp8 zero1 m16",
        "dp512 tp4 zero1 m4 mb4",
        "dp4 pp9 interleaved x7 tp8 cp2 zero1 m63",
        "dp64 cp2 zero1 m32",
        "dp8 pp8 interleaved x8 tp4 cp2 ep8 zero1 m128",
        "dp128 zero3 mb2 recompute",
        "dp12 pp4 gpipe tp2 zero1 m32 mb4 recompute",
        "dp6 pp64 gpipe tp8 m512 recompute",
    ]


def test_the_batch_follows_from_the_degrees_or_says_the_microbatches() -> None:
    asked = pricing().price(Setting(strategy="tp2 pp2 dp4 zero1 mb2", batch="64")).candidate.strategy
    assert (asked.microbatch, asked.microbatches, asked.sequence_parallel) == (2, 8, True)
    written = pricing().price(Setting(strategy="tp2 pp2 dp4 zero1 m8 mb2"))
    assert written.problem.batch == 64
    assert written.candidate.strategy == asked
    assert written.candidate.strategy.schedule == "1f1b"
    assert pricing().price(Setting(strategy="dp8 m4", batch="64")).candidate.strategy.microbatch == 2
    assert "16 sequences" in pricing().price(Setting(strategy="dp16")).notes[0]
    # 32 layers in 12 segments: as even as can be.
    assert pricing().price(Setting(strategy="pp4 vp3 dp4 m4")).candidate.strategy.chunks == 3


@pytest.mark.parametrize(
    ("strategy", "batch", "code"),
    [
        ("tp8 dp4", "", "strategy.wrong-devices"),
        ("tp3 dp2", "8", "strategy.cannot-be-built"),
        ("dp16", "24", "strategy.batch-does-not-divide"),
        ("dp8 m2 mb2", "64", "strategy.wrong-batch"),
        ("dp8 m3", "64", "strategy.batch-does-not-divide"),
        ("pp4 vp9 dp4 m4", "", "strategy.cannot-be-built"),
        ("pp2 vp2 dp8 m3", "", "strategy.cannot-be-built"),
        ("vp2 dp8", "8", "strategy.cannot-be-built"),
        ("dp8 ep2", "8", "strategy.cannot-be-built"),
        ("dp8 p2p", "8", "strategy.not-priced"),
        ("pp2 gpipe dp8 m2", "", "strategy.not-priced"),
        ("dp8 m2 in 8 GiB", "", "strategy.not-priced"),
        ("dp8 zero5", "8", "strategy.impossible-degree"),
        ("dp8 recompute:everything", "8", "strategy.unknown-recompute"),
        ("pp2 dp8 m2 recompute:17", "", "strategy.cannot-be-built"),
        ("pp2 dp8 m2 layers:16+15", "", "strategy.cannot-be-built"),
        ("pp2 dp8 m2 layers:a", "", "strategy.impossible-degree"),
        ("dp8", "many", "price.bad-batch"),
        ("", "8", "strategy.empty"),
    ],
)
def test_contradictions_are_refused(strategy: str, batch: str, code: str) -> None:
    with raises(code):
        pricing().price(Setting(strategy=strategy, batch=batch))


@pytest.mark.parametrize(("strategy", "told"), [("tp3", "take tp of 1, 2, 4, 8"), ("cp3", "take another cp")])
def test_degrees_that_cannot_be_say_which_can(strategy: str, told: str) -> None:
    with raises("strategy.cannot-be-built", match=told):
        pricing("llama2:7b").price(Setting(strategy=strategy))


@pytest.mark.parametrize(
    ("strategy", "told"),
    [("dp8 pp2 vp5 m8", "32 layers are no equal chunks"), ("dp16 recompute:second_products", "torchtitan has")],
)
def test_what_no_plan_tries_is_said(strategy: str, told: str) -> None:
    assert any(told in note for note in pricing().price(Setting(strategy=strategy)).notes)


def test_a_strategy_may_leave_devices_idle_as_in_a_plan() -> None:
    """A plan for 16 devices may take 8 of them; `--devices` of both is the most that may take part."""
    found = pricing(devices=16).price(Setting(strategy="tp4 dp2", batch="8"))
    assert found.candidate.devices == 8
    assert any("8 of 16 devices; 8 are idle" in note for note in found.notes)
    with raises("strategy.wrong-devices", match="takes 16 devices, and 8 are asked for"):
        pricing(devices=8).price(Setting(strategy="tp8 dp2", batch="8"))
    alone = pricing(devices=16).price(Setting(strategy="tp4", batch="8"))
    assert alone.candidate.devices == 4
    assert any("(dp4 takes 16)" in note for note in alone.notes)


def test_a_job_that_is_not_there_is_refused_as_by_a_plan() -> None:
    """It was said that `trimaran plan` simulates it."""
    with raises("job.unknown", match='did you mean "text-lstm"'):
        pricing("text_lstm")
    with raises("job.unknown", match='did you mean "text-lstm"'):
        pricing("Text-LSTM")


@pytest.mark.parametrize("job", ["vgg16", "digits"])
def test_what_the_analytical_model_does_not_know_is_refused(job: str) -> None:
    with raises("price.not-a-decoder", match="trimaran plan"):
        pricing(job)
    with raises("price.length-unknown"):
        pricing(target=parse_target(price="3 USD/device-hour"))
    with raises("price.no-cluster"):
        Pricing(JobSource(reference="llama2:7b"), parse_request())


def test_a_file_of_lines_and_a_table_price_each_row_and_say_what_is_refused(tmp_path: Path) -> None:
    lines = tmp_path / "some.txt"
    lines.write_text("# of a sweep\ntp2 pp2 dp4 zero1 mb1\n\ntp3 dp2  # no head divides\n")
    table = tmp_path / "some.csv"
    table.write_text(
        'run,degrees,global_batch,mfu\na,"tp2 x pp2 x dp4, zero1, 8 microbatches of 2",64,50\nb,dp16,none,\n'
    )
    columns = tmp_path / "columns.csv"
    columns.write_text("tp,pp,dp,zero,mb,batch,recompute\n2,2,4,1,2,64,\n1,1,16,3,1,64,layers\n")
    good, bad = pricing(batch=64).price_each(read_settings(lines))
    assert isinstance(good, PricedStrategy)
    assert isinstance(bad, RefusedStrategy)
    assert bad.error.code == "strategy.cannot-be-built"
    named, wrong = pricing().price_each(read_settings(table))
    assert isinstance(named, PricedStrategy)
    assert named.setting.name == "a"
    assert isinstance(wrong, RefusedStrategy)
    assert wrong.error.code == "price.bad-batch"
    first, second = pricing().price_each(read_settings(columns))
    assert isinstance(first, PricedStrategy)
    assert isinstance(second, PricedStrategy)
    assert first.candidate == named.candidate
    assert second.candidate.strategy.name == "dp16 zero3 m4 recompute"
    (tmp_path / "none.csv").write_text("a,b\n1,2\n")
    with raises("price.no-strategy-column"):
        read_settings(tmp_path / "none.csv")
    with pytest.raises(InputError):
        read_settings(tmp_path / "missing.txt")


def test_the_command_prints_parts_memory_and_verdict(tmp_path: Path) -> None:
    words = ["price", "llama2:7b", "--cluster", "dgx-h100:2", "--batch", "64"]
    shown = CliRunner().invoke(app, [*words, "--strategy", "tp2 pp2 dp4 zero1 mb1"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "tokens/s a device, " in shown.output
    assert "it fits" in shown.output
    answer = json.loads(CliRunner().invoke(app, [*words, "--strategy", "tp2 pp2 dp4 zero1 mb1", "--json"]).stdout)
    assert sum(answer["parts_s"].values()) == pytest.approx(answer["step_time_s"])
    assert sum(answer["memory_bytes"].values()) == answer["peak_bytes"]
    assert answer["tokens_per_s_per_device"] == pytest.approx(64 * 4096 / answer["step_time_s"] / 16)
    assert answer["peak_bytes"] <= answer["memory_limit_bytes"]
    assert (answer["fits"], answer["verdict"], answer["lever"]) == (True, "fits", "")
    assert answer["need_bytes"]["least"] < answer["need_bytes"]["usual"] < answer["need_bytes"]["most"]
    (tmp_path / "some.txt").write_text("tp2 dp8\ntp3\n")
    found = CliRunner().invoke(app, [*words, "--strategies", str(tmp_path / "some.txt"), "--json"])
    rows = json.loads(found.stdout)["strategies"]
    assert [row["asked"] for row in rows] == ["tp2 dp8", "tp3"]
    assert rows[1]["error"]["code"] == "strategy.cannot-be-built"
    assert "refused" in CliRunner().invoke(app, [*words, "--strategies", str(tmp_path / "some.txt")]).output
    assert CliRunner().invoke(app, words).exit_code == 2


def test_a_price_is_of_the_sequence_that_is_asked_for() -> None:
    words = ["price", "llama3:8b", "--cluster", "dgx-h100", "--batch", "8", "--strategy", "tp2 dp4", "--json"]
    said = [
        json.loads(CliRunner().invoke(app, [*words, *more]).stdout)
        for more in ([], ["--sequence", "4096"], ["--sequence", "8192"])
    ]
    assert [one["sequence"] for one in said[1:]] == [4096, 8192]
    steps = [one["step_time_s"] for one in said[1:]]
    assert 1.5 * steps[0] < steps[1] < 3.0 * steps[0]


def test_a_price_takes_seconds_and_little_memory_and_does_not_import_torch() -> None:
    script = (
        "import resource, sys\n"
        "from trimaran.cli import app\n"
        "words = ['price', 'llama3:405b', '--cluster', 'dgx-h100:72', '--batch', '252', '--strategy',\n"
        "         'tp8 cp2 pp9 vp7 dp4 zero1 mb1']\n"
        "try:\n"
        "    app(words)\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "assert 'torch' not in sys.modules\n"
        # Of this program alone: ru_maxrss has that of the process that started it, too.
        "most = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "assert int(most.split()[1]) < 500 * 1024, most\n"
        "assert used.ru_utime + used.ru_stime < 5.0, used\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_words_of_degrees_are_read_back() -> None:
    for text in (
        "dp8 tp4 cp2 ulysses ep8 etp1 zero1 hsdp4 m2 mb2 recompute:attention+norms tp-overlap offload",
        "dp4 pp4 zero-bubble tp8 zero1 m16 recompute:2 layers:3+2*4+3",
        "pp8 interleaved x4 m16 group16 no-tp-overlap",
        "pp8 dualpipev m16",
    ):
        assert read_strategy(text).name == text
    assert read_strategy("tp4 no-sp") == Strategy(tp=4, sequence_parallel=False)
    with raises("strategy.word-twice"):
        read_strategy("pp4 vp2 x4")


def test_what_ran_with_bf16_gradients_is_said_to_fit_with_them() -> None:
    """Llama 3.1 405B on 576 H100, by NVIDIA's recipe: 81 GiB with gradients in 32 bits, 73 with bf16 ones."""
    words = ["price", "llama3:405b", "--cluster", "dgx-h100:72", "--batch", "252", "--json"]
    words += ["--strategy", "tp8 cp2 pp9 vp7 dp4 zero1 mb1"]
    answer = json.loads(CliRunner().invoke(app, words).stdout)
    assert (answer["fits"], answer["verdict"], answer["lever"]) == (True, "fits with", "bf16 gradients")
    assert answer["degrees"]["gradients"] == "bf16"
    with_reserve = json.loads(CliRunner().invoke(app, [*words, "--reserve", "3GiB"]).stdout)
    assert with_reserve["need_bytes"]["least"] == with_reserve["need_bytes"]["most"]
    pinned = json.loads(CliRunner().invoke(app, [*words, "--gradients", "fp32"]).stdout)
    assert pinned["lever"] != "bf16 gradients"
    assert pinned["strategy"].endswith("fp32-gradients")


DECODERS = ("gpt2:774m", "llama3.2:1b", "llama3:8b", "qwen3:30b-a3b")
MACHINES = ("rtx-3060", "2xrtx-4090", "4xa40", "dgx-h100")
SOME = (("gpt2:774m", "rtx-3060"), ("llama3.2:1b", "4xa40"), ("llama3:8b", "dgx-h100"))
STRATEGIES = (
    *("one device", "dp2 zero1 mb2", "dp4 zero3 mb8", "tp4 recompute offload", "tp2 pp2 zero0", "dp8 zero2 mb4"),
    *("dp2 tp4 zero1 adam-8bit", "dp8 zero3 recompute", "tp2 offload", "dp8 mb8", "dp4 tp2 fp32-gradients", "pp8"),
)


@pytest.mark.parametrize(
    ("job", "machine"),
    [
        pytest.param(job, machine, marks=[] if (job, machine) in SOME else [pytest.mark.sweep])
        for job in DECODERS
        for machine in MACHINES
    ],
)
def test_what_fits_is_below_the_limits_of_device_and_host_and_plan_agrees(job: str, machine: str) -> None:
    """Step, memory and verdict are of the same strategy; what would make it fit is said in addition."""
    verdicts = set()
    for words in STRATEGIES:
        asked = ["--cluster", machine, "--batch", "64", "--strategy", words, "--json"]
        found = CliRunner().invoke(app, ["price", job, *asked])
        answer = json.loads(found.stdout)
        if found.exit_code:  # more devices than there are, or heads that do not divide
            assert answer["error"]["code"] in ("strategy.wrong-devices", "strategy.cannot-be-built")
            continue
        host = answer["host_bytes"] <= answer["host_limit_bytes"]
        assert answer["fits"] is (answer["peak_bytes"] <= answer["memory_limit_bytes"] and host), words
        assert answer["fits"] is (answer["verdict"] != "does not fit"), words
        assert ("ways" in answer) is not answer["fits"]
        planned = CliRunner().invoke(app, ["plan", job, *asked])
        plan = json.loads(planned.stdout)
        assert planned.exit_code == (0 if answer["fits"] else 3), (words, plan)
        if answer["fits"]:
            chosen = plan["chosen"]
            assert chosen["peak_bytes"] == answer["peak_bytes"]
            assert chosen["step_time_s"] == pytest.approx(answer["step_time_s"])
        verdicts.add(answer["fits"])
    assert verdicts
