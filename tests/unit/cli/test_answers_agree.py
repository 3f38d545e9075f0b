"""One question has one answer, whichever command is asked and however it is spelled; the useful part comes first."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import trimaran
from trimaran.base.errors import InfeasibleError, InputError
from trimaran.cli import app
from trimaran.machine.find import find_machine
from trimaran.program.plan_file import plan_path

AGREEMENT = 0.001
"""How far the simulated step of a plan may be from the one of `scale`, as a share."""

_ASKED = ("lenet", "--cluster", "dgx1-v100", "--devices", "2", "--batch", "4096")


def said(*command: str) -> str:
    """What a command prints; one that neither reads nor writes a file says the same each time, and runs once."""
    return (_run.__wrapped__ if any("/" in word for word in command) else _run)(*command)


@functools.cache
def _run(*command: str) -> str:
    found = CliRunner().invoke(app, list(command), env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    return found.stdout


def document(*command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(*command, "--json"))
    return found


def limit(page: str) -> str:
    """The sentence on what limits a step, however it is wrapped."""
    whole = " ".join(page.split())
    return next(
        iter(re.findall(r"limited by [^.]*: [\d.]+ \S+, \d+ % of the step[^.]*\.", whole, re.IGNORECASE))
    ).lower()


def test_plan_explanation_and_simulation_name_one_bottleneck_with_one_share() -> None:
    plan, why, step = (said(command, *_ASKED) for command in ("plan", "explain", "simulate"))
    assert limit(plan) == limit(why) == limit(step)
    document = json.loads(said("explain", *_ASKED, "--json"))
    assert document["plan"]["binding"] == limit(plan)
    assert document["plan"]["limiter"].split(",")[0] in limit(plan)


def test_shares_of_what_limits_and_devices_left_idle_follow_from_the_json() -> None:
    """Pages print the share of each row's bottleneck, and of how many devices a strategy takes some."""
    plan, step = document("plan", *_ASKED), document("simulate", *_ASKED, "--strategy", "dp1")
    for one in (*plan["candidates"], step):
        assert sum(one["groups_s"].values()) == pytest.approx(one["step_time_s"])
    chosen = plan["chosen"]
    share = max(chosen["groups_s"].values()) / chosen["step_time_s"]
    assert f"{100 * share:.0f} % of the step" in limit(said("plan", *_ASKED))
    assert (step["devices"], step["idle_devices"]) == (1, 1)
    assert "on 1 of 2 devices" in said("simulate", *_ASKED, "--strategy", "dp1")


def test_an_explanation_says_how_much_slower_references_are_in_json_too() -> None:
    references = document("explain", *_ASKED)["references"]
    known = [one for one in references if one["strategy"] is not None]
    chosen_s = document("plan", *_ASKED)["chosen"]["step_time_s"]
    assert known
    for one in known:
        assert one["slower"] == pytest.approx(one["step_time_s"] / chosen_s - 1.0)
        assert one["slower_interval"][0] <= one["slower_interval"][1]


def test_an_explanation_begins_with_the_plan_and_ends_with_what_was_rejected_by_count() -> None:
    page = said("explain", *_ASKED)
    order = [
        "lenet on 2 devices: ",
        "Limited by ",
        "What the step is made of",
        "Remedies",
        "What a change",
        "Runners-up",
    ]
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    rejected = json.loads(said("explain", *_ASKED, "--json"))["rejected"]
    assert len(rejected) > 1
    assert page.index("rejected: ") > places[-1]
    whole = said("explain", *_ASKED, "--verbose")
    one = next(entry["strategy"] for entry in rejected if entry["cause"] == "bound")
    assert one in " ".join(whole.split())
    assert one not in " ".join(page.split())


@pytest.mark.parametrize("command", ["plan", "scale", "memory"])
def test_an_answer_ends_with_the_next_command(command: str) -> None:
    asked = {
        "plan": _ASKED,
        "scale": ("lenet", "--cluster", "dgx1-v100", "--devices", "1,8"),
        "memory": ("lenet", "--device", "titan-x", "--no-largest-batch"),
    }[command]
    last = said(command, *asked).rpartition("\nNext")[2]
    assert re.match(r"(, [^:]*)?: trimaran \w+ lenet ", last)


def test_a_cluster_without_a_number_of_nodes_grows_to_its_devices() -> None:
    asked = ("lenet", "--cluster", "dgx1-v100", "--devices", "16", "--batch", "4096")
    found = CliRunner().invoke(app, ["plan", *asked, "--json"])
    assert found.exit_code == 0
    assert "dgx1-v100:2" in found.stderr
    assert json.loads(found.stdout)["devices"] == 16
    counted = ("lenet", "--cluster", "dgx1-v100:1", "--devices", "16", "--batch", "4096")
    refused = CliRunner().invoke(app, ["plan", *counted, "--json"])
    assert json.loads(refused.stdout)["error"]["code"] == "machine.too-few-devices"


def test_a_configuration_is_a_job_where_a_plan_file_may_stand_too(tmp_path: Path) -> None:
    configuration, plan = tmp_path / "config.json", tmp_path / "plan.json"
    configuration.write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    plan.write_text(json.dumps({"schema_version": 3, "kind": "plan", "model_type": "of a plan"}))
    assert plan_path(str(configuration)) is None
    assert plan_path(str(plan)) == plan
    assert plan_path(str(tmp_path / "missing.json")) == tmp_path / "missing.json"


COSTS = {
    "a program": (*_ASKED, "--software", "pytorch:2019", "--loader", "20000 images/s per worker"),
    "degrees": (
        *("gpt2:124m", "--cluster", "dgx-a100", "--batch", "64", "--software", "megatron:2023", "--reserve", "3GiB"),
        *("--lengths", "512:0.5,900:0.5", "--packing", "causal"),
    ),
    "experts": ("mixtral:8x7b", "--cluster", "dgx-h100:2", "--batch", "64", "--expert-imbalance", "2"),
    "decisions about a program": (*_ASKED, "--dp", "1", "--forbid", "sharded", "--keep", "classifier=0"),
    "decisions about degrees": (
        *("gpt2:124m", "--cluster", "dgx-a100", "--batch", "64", "--tp", "2", "--optimizer-state", "bf16-moments"),
    ),
    "a strategy, and a type besides": (
        *("gpt2:124m", "--cluster", "dgx-a100", "--batch", "64", "--strategy", "dp8 zero1", "--gradients", "bf16"),
    ),
}


@pytest.mark.parametrize("asked", COSTS.values(), ids=COSTS)
def test_the_plan_of_a_file_has_the_costs_that_it_was_made_by(asked: tuple[str, ...], tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    planned = document("plan", *asked, "--output", path)
    why = document("explain", path)
    assert [why[name] for name in ("software", "precision")] == [planned[name] for name in ("software", "precision")]
    assert why["precision_source"] == "as the plan says"
    for figure in ("strategy", "step_time_s", "peak_bytes"):
        assert why["plan"][figure] == planned["chosen"][figure]
    assert why["rejected_counts"] == planned["rejected_counts"]
    assert why["pins"] == document("explain", *asked)["pins"]


@pytest.mark.parametrize("words", ["dp2 b48KiB", "dp16 b64KiB", "dp16 b128KiB"])
def test_a_strategy_has_the_buckets_that_its_name_says(words: str) -> None:
    """Also where they are none of the sizes that a search tries, and where others are as fast and more usual."""
    devices = words.partition(" ")[0].removeprefix("dp")
    asked = ("lenet", "--cluster", "dgx1-v100:2@ethernet-10g", "--devices", devices, "--batch", "4096")
    assert document("plan", *asked, "--strategy", words)["chosen"]["strategy"] == words


def test_a_machine_of_a_file_is_the_one_of_the_catalog_that_it_is_like(tmp_path: Path) -> None:
    """What was measured of the links of a machine holds under any name, but not where they are others."""
    file = tmp_path / "rack.toml"

    def step_s(cluster: str) -> float:
        asked = ("lenet", "--cluster", cluster, "--devices", "4", "--local-batch", "64")
        return float(document("scale", *asked)["rows"][0]["step_time_s"])

    for like in ("dgx-h100", "p3.16xlarge", "dgx1-v100"):
        file.write_text(f'[[nodes]]\nname = "ours"\nlike = "{like}"\nsource = "ours"\n')
        assert step_s(str(file)) == step_s(like)
    file.write_text(file.read_text() + 'device = "a100-40gb"\n')
    assert find_machine(str(file)).node.like is None


def test_what_surely_fits_with_less_kept_fits_as_plans_take_it() -> None:
    """A strategy whose usual need is there and not its most; then one of which only the usual need is there."""
    asked = ("llama2:7b", "--cluster", "dgx-a100", "--batch", "64")
    strategy = ("--strategy", "dp8 zero1 m8 recompute")
    need = document("price", *asked, *strategy)["need_bytes"]
    verdicts = []
    for memory in (need["most"] - 1, (need["usual"] + need["most"]) // 2):
        for types in ((), ("--gradients", "fp32", "--optimizer-state", "fp32")):
            within = (*asked, *strategy, "--memory", f"{memory}B", *types)
            priced, planned = document("price", *within), document("plan", *within)
            assert priced["need_bytes"] == planned["chosen"]["need_bytes"]
            assert priced["peak_bytes"] == planned["chosen"]["peak_bytes"]
            stages = planned["chosen"]["layout"]["stages"]
            assert max(stage["peak_bytes"] for stage in stages) == priced["peak_bytes"]
            verdicts.append(priced["verdict"])
    assert verdicts == ["fits with", "not sure"] * 2


def test_memory_and_plan_say_alike_whether_a_step_fits_a_device() -> None:
    """The byte that decides is the same for both: of tensors, and of the workspace of matrix products."""
    asked = ("digits", "--batch", "4")
    there = document("memory", *asked, "--device", "titan-x", "--no-largest-batch")
    need = there["keep_peak_bytes"] + there["workspace_bytes"]
    for room, code in ((need, 0), (need - 1, InfeasibleError.exit_code)):
        card = f"{room + there['context_bytes']}B"
        # Nothing of so small a step can be spared.
        memory = ("memory", *asked, "--device", "titan-x", "--no-largest-batch", "--budget", card)
        plan = ("plan", *asked, "--cluster", "titan-x", "--devices", "1", "--memory", f"{room}B")
        for command in (memory, (*plan, "--strategy", "one device")):
            assert CliRunner().invoke(app, list(command)).exit_code == code


KEPT = {
    "gpt-j-6b": ("dgx-a100-40gb:8@ethernet-10g", "--software", "nemo", "--optimizer-state", "bf16-moments"),
    "olmoe-1b-7b": ("p5.48xlarge", "--optimizer-state", "adam-8bit"),
}


def configuration(name: str, folder: Path) -> str:
    """A `config.json` as its model was published."""
    kept = Path(__file__).parents[1] / "pricing" / "analytical" / "published_configurations.json"
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(kept.read_text())[name]))
    return str(file)


@pytest.mark.parametrize("name", KEPT)
def test_each_row_of_a_plan_is_what_price_says_of_it(name: str, tmp_path: Path) -> None:
    """Baselines too have the types of gradients and of the optimizer's state that were asked for."""
    cluster, *options = KEPT[name]
    asked = (configuration(name, tmp_path), "--cluster", cluster, "--batch", "128", *options)
    rows = document("plan", *asked)["candidates"]
    assert len(rows) > 4
    for row in rows:
        priced = document("price", *asked, "--strategy", row["strategy"])
        assert priced["strategy"] == row["strategy"]
        for figure in ("devices", "degrees", "step_time_s", "interval_s", "need_bytes", "mfu", "parts_s"):
            assert priced[figure] == row[figure], (row["strategy"], figure)


def test_every_command_says_the_tokens_that_it_assumes(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    file.write_text(json.dumps({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 128} | small))
    note = "sequences of 128 tokens are assumed"
    asked = {
        "plan": ("--cluster", "dgx-a100", "--devices", "1"),
        "scale": ("--cluster", "dgx-a100", "--devices", "1"),
        "memory": ("--device", "v100", "--no-largest-batch"),
    }
    for command, options in asked.items():
        assert any(note in one for one in document(command, str(file), *options)["notes"]), command
        told = document(command, f"{file}:sequence=64", *options)["notes"]
        assert not any("tokens are assumed" in one for one in told), command


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_plan_by_the_analytical_model_names_its_bottleneck(command: str) -> None:
    asked = ("llama2:7b", "--cluster", "dgx-a100:2@ethernet-10g", "--batch", "64")
    told, page = document(command, *asked), said(command, *asked)
    chosen = told["chosen"] if command == "plan" else told["plan"]
    rows = told["candidates"] if command == "plan" else told["alternatives"]
    assert chosen["limiter"].split(",")[0] in limit(page)
    assert all(row["limiter"] for row in rows)


DECODER = ("gpt2:124m", "--cluster", "dgx-a100")
NETWORK = ("lenet", "--cluster", "dgx1-v100", "--devices", "2")
SPELLED = {
    "pytorch:2020": [("plan", *NETWORK), ("scale", *NETWORK)],
    "trimaran:2024": [("explain", *NETWORK)],
    **{
        software: [("price", *DECODER, "--strategy", strategy, "--batch", "64")]
        for software, strategy in (
            ("megatron:2023.5", "dp8 zero1"),
            ("torchtitan:2025", "dp8 zero3"),
            ("nemo:2024", "dp8 zero1"),
        )
    },
}


@pytest.mark.parametrize("software", SPELLED)
def test_software_is_spelled_as_its_option_has_it(software: str) -> None:
    for asked in SPELLED[software]:
        assert document(*asked, "--software", software)["software"] == software


def test_the_usual_software_of_a_decoder_is_spelled_alike() -> None:
    assert document("plan", *DECODER, "--batch", "64")["software"] == "megatron:2025"


def test_a_seed_is_refused_where_no_plan_depends_on_it() -> None:
    for asked in (_ASKED, ("gpt2:124m", "--cluster", "dgx-a100", "--batch", "64")):
        refused = CliRunner().invoke(app, ["plan", *asked, "--seed", "3", "--json"])
        assert refused.exit_code == InputError.exit_code
        assert json.loads(refused.stdout)["error"]["code"] == "plan.seed-elsewhere"


def test_the_price_of_a_cluster_file_counts_as_if_it_was_given(tmp_path: Path) -> None:
    file, price = tmp_path / "rack.toml", "16 USD/node-hour"
    file.write_text(f'[[nodes]]\nname = "ours"\nlike = "dgx1-v100"\nsource = "ours"\nprice = "{price}"\n')
    asked = ("lenet", "--devices", "2,8", "--cluster")
    of_file = document("scale", *asked, str(file))
    given = document("scale", *asked, "dgx1-v100", "--price", price)
    costs = [[row["cost_of_million_samples"] for row in told["rows"]] for told in (of_file, given)]
    assert costs[0] == costs[1]
    assert of_file["currency"] == "USD"
    servers = ("--sync", "server", "--servers", "2")
    alone = document("scale", *asked, str(file), *servers)
    assert alone["currency"] is None
    assert any("--server-price" in note for note in alone["notes"])
    assert document("scale", *asked, str(file), *servers, "--server-price", "1 USD/node-hour")["currency"] == "USD"


def test_learned_positions_of_a_name_grow_with_a_note_and_those_of_a_file_are_as_they_are(tmp_path: Path) -> None:
    asked = ("--cluster", "dgx-a100", "--batch", "64", "--sequence")
    file = configuration("gpt2-xl", tmp_path)
    for sequence in ("512", "1024"):
        by_name, by_file = (document("plan", job, *asked, sequence) for job in ("gpt2:1.5b", file))
        assert by_name["chosen"] == by_file["chosen"]
    assert any("4,096 learned positions" in note for note in document("plan", "gpt2:1.5b", *asked, "4096")["notes"])
    for cluster in ("dgx-a100", "dgx-a100:16"):
        refused = CliRunner().invoke(app, ["plan", file, "--cluster", cluster, "--batch", "128", "--sequence", "4096"])
        assert refused.exit_code == InputError.exit_code
        assert "raise n_positions in the file" in " ".join(refused.stderr.split())


def test_rows_on_fewer_devices_say_on_how_many() -> None:
    asked = ("llama3:8b", "--cluster", "gb200-nvl72:3", "--batch", "72")
    told = document("plan", *asked)
    rows = told["candidates"]
    assert {row["devices"] for row in rows} == {144, 216}
    for row in rows:
        degrees = row["degrees"]
        assert row["devices"] == degrees["dp"] * degrees["tp"] * degrees["pp"] * degrees["cp"]
    assert told["idle_devices"] == told["devices"] - told["chosen"]["devices"]
    assert re.search(r"strategy.* devices ", said("plan", *asked, "--verbose"))


def test_a_level_of_zero_is_refused_where_one_replica_would_have_it() -> None:
    network = ("lenet", "--cluster", "dgx1-v100", "--devices", "2")
    decoder = ("llama3:8b", "--cluster", "dgx-h100", "--batch", "64", "--dp", "1", "--tp", "8")
    for asked in ((*network, "--dp", "1"), (*network, "--pp", "2", "--dp", "1"), decoder):
        refused = CliRunner().invoke(app, ["plan", *asked, "--zero", "1"])
        assert refused.exit_code == InfeasibleError.exit_code
        assert "--zero 1 is for two replicas or more" in " ".join(refused.stderr.split())


STEPS = {
    "launches": ("wide", "dgx-a100", 4, 64, ("--software", "pytorch:2020")),
    "within a node": ("lenet", "dgx1-v100", 8, 256, ()),
    "over nodes": ("lenet", "dgx1-v100:2@ethernet-10g", 16, 64, ("--software", "trimaran")),
    "waits for data": ("lenet", "dgx1-v100", 8, 256, ("--loader", "20000 images/s per worker")),
    "nodes of unlike loads": ("lenet", "g5.12xlarge:2", 6, 2, ("--decode", "7.4ms", "--software", "pytorch:2020")),
    "loads in its own thread": ("wide", "nc24", 2, 16, ("--decode", "7.4ms", "--workers", "0")),
    "an update between slow copies": ("alexnet", "nc24", 4, 16, ("--software", "pytorch", "--precision", "ieee")),
}


@pytest.mark.parametrize(("job", "cluster", "devices", "local", "options"), STEPS.values(), ids=STEPS)
def test_scale_and_plan_give_a_step_with_one_interval_and_one_limiter(
    job: str, cluster: str, devices: int, local: int, options: tuple[str, ...]
) -> None:
    asked = (job, "--cluster", cluster, "--devices", str(devices), *options)
    row = document("scale", *asked, "--local-batch", str(local))["rows"][0]
    plan = document("plan", *asked, "--batch", str(devices * local), "--strategy", f"dp{devices}")["chosen"]
    low, high = (devices * local / rate for rate in reversed(row["interval"]))
    assert plan["step_time_s"] == pytest.approx(row["step_time_s"], rel=AGREEMENT)
    assert plan["interval_s"] == pytest.approx([low, high], rel=2 * AGREEMENT)
    assert low < plan["step_time_s"] < high
    assert plan["limiter"].partition(",")[0] == row["limiter"].partition(":")[0]


def test_a_simulated_strategy_is_on_as_many_devices_as_in_its_plan() -> None:
    asked = ("lenet", "--cluster", "dgx1-v100", "--batch", "64", "--strategy", "dp2")
    step = document("simulate", *asked)
    assert step["devices"] == document("plan", *asked)["chosen"]["devices"] == len(step["rank"])


@pytest.mark.parametrize(("software", "told"), [("mxnet:2018", True), ("tensorflow:2019", True), ("pytorch", False)])
def test_a_plan_says_where_its_exchange_is_not_that_of_the_software(software: str, told: bool) -> None:
    notes = document(
        "plan", "lenet", "--cluster", "dgx1-v100", "--batch", "64", "--strategy", "dp8", "--software", software
    )["notes"]
    assert any("trimaran scale" in note for note in notes) is told


def test_a_change_and_a_pin_are_weighed_with_the_memory_plans_of_a_new_plan() -> None:
    asked = ("resnet18", "--cluster", "dgx1-p100", "--devices", "1", "--batch", "16")
    within = document("plan", *asked, "--memory", "400MiB")["chosen"]
    assert within["strategy"] == "one device in 400.0 MiB"
    (change,) = document("explain", *asked, "--what-if", "memory=400MiB")["what_if"]
    assert (change["then_chosen"], change["then_step_time_s"]) == (within["strategy"], within["step_time_s"])
    halved = ("--memory", "400MiB", "--microbatches", "2")
    (pin,) = document("explain", *asked, *halved, "--what-if", "compute=x2")["pins"]
    assert (pin["without"], pin["without_step_time_s"]) == (within["strategy"], within["step_time_s"])


def test_layers_are_gathered_early_where_a_framework_sums_gradients_after_the_backward() -> None:
    """Gathers that a step itself waits for were put off to its end with the sums: it waited for itself."""
    asked = ("lenet", "--cluster", "dgx1-v100", "--batch", "512", "--strategy", "dp8 zero3")
    assert document("plan", *asked, "--software", "torch7:2016")["chosen"]["step_time_s"] > 0


def test_a_price_is_refused_where_nothing_says_how_long_devices_are_needed() -> None:
    """It would make a plan compare batches, and say no cost."""
    price = ("--price", "3 USD/node-hour")
    decoder = ("gpt2:124m", "--cluster", "dgx-a100", "--batch", "64")
    for asked in (("plan", *_ASKED), ("plan", *decoder), ("price", *decoder, "--strategy", "dp8")):
        refused = CliRunner().invoke(app, [*asked, *price, "--json"])
        assert refused.exit_code == InputError.exit_code
        assert json.loads(refused.stdout)["error"]["code"] == "price.length-unknown"


def test_a_share_that_a_doubling_must_save_is_refused_where_no_doubling_is_compared() -> None:
    decoder = ("gpt2:124m", "--cluster", "dgx-a100", "--batch", "64")
    for asked in (_ASKED, decoder, (*decoder, "--tokens", "1B")):
        refused = CliRunner().invoke(app, ["plan", *asked, "--least-saved", "0.5", "--json"])
        assert json.loads(refused.stdout)["error"]["code"] == "accuracy.nothing-to-save"


def test_a_limit_of_the_largest_batch_is_refused_where_none_is_looked_for() -> None:
    asked = ("memory", "lenet", "--device", "v100", "--no-largest-batch", "--slowdown", "1", "--json")
    assert json.loads(CliRunner().invoke(app, asked).stdout)["error"]["code"] == "memory.slowdown-alone"


def test_a_program_keeps_a_reserve_as_the_command_line_does() -> None:
    asked = ("llama3:8b", "--cluster", "dgx-h100:2", "--batch", "64", "--reserve", "20%")
    chosen = trimaran.plan("llama3:8b", cluster="dgx-h100:2", batch=64, reserve="20%").chosen
    printed = document("plan", *asked)["chosen"]
    assert (chosen.name, chosen.step_time_s) == (printed["strategy"], printed["step_time_s"])
    assert chosen.name != document("plan", *asked[:-2])["chosen"]["strategy"]


def test_loading_is_refused_by_an_explanation_of_a_decoder_as_by_its_plan() -> None:
    asked = ("llama3:8b", "--cluster", "dgx-h100:2", "--batch", "64", "--loader", "200 images/s", "--json")
    for command in ("plan", "explain"):
        assert json.loads(CliRunner().invoke(app, [command, *asked]).stdout)["error"]["code"] == "loading.analytical"


@pytest.mark.parametrize("option", [("--gap", "0.1"), ("--time-limit", "5"), ("--reserve", "5%"), ("--dp", "2")])
def test_options_of_a_search_are_refused_where_a_plan_is_made_already(option: tuple[str, str], tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    said("plan", *_ASKED, "--output", path)
    refused = CliRunner().invoke(app, ["simulate", path, *option])
    assert refused.exit_code == InputError.exit_code
    assert option[0] in refused.stderr


def test_a_refused_precision_names_the_commands_that_take_it() -> None:
    """A decoder is planned by its shape on any number of devices; the refusal said "on more than 64"."""
    asked = ("gpt2", "--cluster", "dgx-h100", "--devices", "2", "--precision", "fp8")
    refused = CliRunner().invoke(app, ["scale", *asked])
    assert refused.exit_code == InputError.exit_code
    assert sorted(re.findall(r"`trimaran (\w+)`", " ".join(refused.stderr.split()))) == ["plan"]
    chosen = document("plan", *asked, "--batch", "16")["chosen"]
    priced = document("price", *asked, "--batch", "16", "--strategy", chosen["strategy"])
    assert priced["step_time_s"] == chosen["step_time_s"]


def test_places_of_a_placement_compute_where_a_pipeline_would_wait() -> None:
    """Most of both devices' step is busy, as `simulate` says; what is on the critical path is compute, on whichever."""
    asked = ("digits-branches", "--cluster", "dgx1-v100", "--devices", "2", "--strategy", "placed on 2")
    step = document("simulate", *asked)
    assert min(step["busy_s"]) > 0.7 * step["step_time_s"]
    page = " ".join(said("plan", *asked).split())
    assert "Limited by compute: " in page
    assert "idle stages" not in page


_PRINTED: dict[str, tuple[str, Callable[[], object]]] = {
    "plan": (
        "plan llama2:7b --cluster dgx-h100 --batch 64",
        lambda: trimaran.plan("llama2:7b", cluster="dgx-h100", batch=64),
    ),
    "explain": (
        "explain llama2:7b --cluster dgx-h100 --batch 64",
        lambda: trimaran.explain(trimaran.plan("llama2:7b", cluster="dgx-h100", batch=64)),
    ),
    "scale": ("scale lenet --cluster dgx1-v100", lambda: trimaran.predict_scaling("lenet", cluster="dgx1-v100")),
    "crossover": (
        "crossover lenet --cluster dgx1-v100:1 --widths 2",
        lambda: trimaran.find_crossover("lenet", cluster="dgx1-v100:1", widths=(2,)),
    ),
    "memory": ("memory lenet --device v100", lambda: trimaran.estimate_memory("lenet", device="v100")),
    "check": ("check digits", lambda: trimaran.check("digits")),
}


@pytest.mark.parametrize("verb", _PRINTED)
def test_a_result_of_python_prints_the_page_of_its_command(verb: str) -> None:
    command, ask = _PRINTED[verb]

    def timeless(page: str) -> list[str]:
        # How long a search took differs, and so may the wrapping.
        return re.sub(r"\d[\d.]* [µm]?s(?=[;,.])", "_", " ".join(re.split(r"\nNext[:,] ", page)[0].split())).split()

    assert timeless(str(ask())) == timeless(said(*command.split()))


def test_the_rows_of_a_training_are_those_of_a_plan_and_more() -> None:
    asked = ("llama3:8b", "--cluster", "dgx-h100:2", "--batch", "64")
    plan, training = document("plan", *asked), document("plan", *asked, "--tokens", "1T", "--devices", "8,16")
    rows = {row["strategy"]: row for row in plan["candidates"]}
    assert training["at_batch"]["candidates"] == plan["candidates"]
    alike = [row for row in training["candidates"] if row["devices"] == 16]
    assert len(alike) < len(training["candidates"])
    for row in training["candidates"]:
        assert set(row) >= set(plan["candidates"][0])
    for row in (*alike, training["chosen"]):
        for figure, value in rows[row["strategy"]].items():
            assert figure == "pareto" or row[figure] == value, figure


def test_the_memory_of_a_named_strategy_is_that_of_the_devices_where_both_are_printed_alike() -> None:
    """62.6 MiB are 65,641 kB, more than the devices have: a row of a plan, asked for by its name, was another one."""
    asked = {"cluster": "titan-x", "devices": 1, "batch": 64, "memory": 65_600_000}
    for name, budget in (("62.6 MiB", 65_600_000), ("62.5 MiB", 62.5 * 2**20)):
        chosen = trimaran.plan("text-lstm", strategy=f"one device in {name}", **asked).chosen  # type: ignore[arg-type]  # by name
        assert (chosen.name, chosen.strategy.memory_bytes) == (f"one device in {name}", budget)
