"""`trimaran scale` and `python -m trimaran_studies reproduce dgx1` as people and programs call them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import instead, trimaran

EXACTLY = [
    "devices",
    "local_batch_size",
    "sync",
    "samples_per_s",
    "interval",
    "speedup",
    "efficiency",
    "fp_bp_s",
    "wu_s",
    "wu_exposed_s",
    "limiter",
    "peak_bytes",
    "fits",
]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("scale")
    done = trimaran(
        "scale", "alexnet", "--cluster", "dgx1-v100", "--devices", "1,8", "--local-batch", "32",
        "--sync", "kvstore,nccl", "--plot", "plot.svg", "--json", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (folder / "plot.svg").read_text(encoding="utf-8").startswith("<svg")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_rows_have_the_agreed_names(document: dict[str, Any]) -> None:
    assert next(iter(document)) == "schema_version"
    assert [row.keys() >= {*EXACTLY} for row in document["rows"]] == [True] * 4


def test_rows_are_whole(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        low, high = row["interval"]
        assert low < row["samples_per_s"] < high
        assert row["fp_bp_s"] + row["wu_exposed_s"] + row["feeding_s"] == pytest.approx(row["step_time_s"])
        assert row["samples_per_s"] * row["step_time_s"] == pytest.approx(row["devices"] * row["local_batch_size"])
        assert row["wu_s"] >= row["wu_exposed_s"] - 1e-12
        assert 0 < row["peak_bytes"] < row["card_bytes"]
        assert row["fits"] is True


def test_large_layers_are_named_with_a_change_that_helps(document: dict[str, Any]) -> None:
    row = next(row for row in document["rows"] if (row["devices"], row["sync"]) == (8, "kvstore"))
    assert row["limiter"] == "communication"
    assert row["exposed"][0]["module"] == "classifier.1"
    splitting = [advice for advice in document["advice"] if advice["id"] == "split-tensor"]
    assert splitting
    assert splitting[0]["predicted_gain"] > 0.1


def test_tables_fit_80_columns_without_colour(tmp_path: Path) -> None:
    done = trimaran("scale", "lenet", "--cluster", "dgx1-v100", "--devices", "1..4", "--batch", "64", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "batch 64 in all" in done.stdout
    assert "\x1b" not in done.stdout


def test_each_method_and_batch_has_its_table_and_the_fastest_is_named(tmp_path: Path) -> None:
    asked = ("--devices", "1,2,4,8", "--local-batch", "16,32,64", "--sync", "kvstore,nccl")
    done = trimaran("scale", "lenet", "--cluster", "dgx1-v100", *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert [line for line in lines if line.endswith(" a device") and "batch" in line] == [
        f"{sync}, batch {batch} a device" for batch in (16, 32, 64) for sync in ("kvstore", "nccl")
    ]
    assert lines[0].startswith("lenet: ")
    assert "samples/s on 8 devices of dgx1-v100" in " ".join(lines[:3])


def test_the_old_spelling_of_the_global_batch_is_read_with_a_note(tmp_path: Path) -> None:
    old, new = (
        json.loads(
            trimaran(
                "scale", "lenet", "--cluster", "dgx1-v100", "--devices", "1,2,3", *options, "--json", cwd=tmp_path
            ).stdout
        )
        for options in (("--global-batch", "64"), ("--batch", "64"))
    )
    assert old["rows"] == new["rows"]
    assert [(row["devices"], row["local_batch_size"]) for row in new["rows"]] == [(1, 64), (2, 32)]
    assert any("old spelling" in note for note in old["notes"])
    assert any("--local-batch 64" in note for note in new["notes"])
    assert any("equal shares for 3 devices" in note for note in new["notes"])


def test_long_names_of_precisions_are_read_with_a_note(tmp_path: Path) -> None:
    plain = ("scale", "lenet", "--cluster", "dgx1-v100", "--devices", "1", "--json", "--precision")
    long, short = (trimaran(*plain, name, cwd=tmp_path) for name in ("float16", "fp16"))
    assert long.stdout == short.stdout
    assert json.loads(short.stdout)["precision"] == "fp16"
    assert (long.stderr, short.stderr) == ("Note: --precision float16 is written fp16.\n", "")


def test_a_figure_of_ones_own_sets_the_scale(tmp_path: Path) -> None:
    done = trimaran(
        "scale", "lenet", "--cluster", "dgx1-v100", "--devices", "1", "--local-batch", "32",
        "--measured", "1000 images/s", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(done.stdout)["rows"][0]["samples_per_s"] == pytest.approx(1000.0)


def test_figures_of_several_batches_set_the_scale_of_the_others(tmp_path: Path) -> None:
    """apache/mxnet, docs/faq/perf.md, ResNet-50 on a V100 in float32: 343.19 images/s at 64, within 10 %."""
    done = trimaran(
        "scale", "resnet50", "--cluster", "dgx1-v100", "--devices", "1", "--local-batch", "64",
        "--software", "mxnet:2018.4", "--measured", "65.01 images/s at 2, 251.22 at 16, 363.69 at 128",
        "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["samples_per_s"] == pytest.approx(343.19, rel=0.10)


def test_sentences_of_different_lengths_cost_a_group_its_longest_batch(tmp_path: Path) -> None:
    """Two devices wait 0.0564 of FP and BP at a spread of a tenth; one waits nothing."""
    alike, unequal = (
        json.loads(
            trimaran(
                "scale", "lenet", "--cluster", "dgx1-v100", "--devices", "1,2", "--length-spread", spread, "--json",
                cwd=tmp_path,
            ).stdout
        )["rows"]
        for spread in ("0", "0.1")
    )  # fmt: skip
    assert unequal[0]["step_time_s"] == alike[0]["step_time_s"]
    assert unequal[1]["step_time_s"] - alike[1]["step_time_s"] == pytest.approx(0.0564 * alike[1]["fp_bp_s"], rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "1;2"), 'devices such as "1,2,4,8"'),
        (("--devices", "8..2"), "8..2"),
        (("--sync", "nccl,pigeon"), "kvstore, server"),
        (("--sync", "p2p"), 'is "kvstore"'),
        (("--sync", "byteps", "--servers", "-1"), "0 to 100,000"),
        (("--sync", "byteps", "--servers", "2", "--price", "24 USD/node-hour"), "--server-price"),
        (("--servers", "2"), "--sync nccl sums gradients without them"),
        (("--server-price", "2 USD/node-hour"), "with --servers and --price together"),
        (("--sync", "server", "--servers", "2", "--server-price", "2 USD/node-hour"), "say both"),
        (("--measured", "fast"), "363 images/s"),
        (("--measured", "251 at 16, 364"), "batch each"),
        (("--measured", "251 at 16, 364 at 16"), "batch each"),
        (("--software", "mxnet:old"), 'such as "pytorch"'),
        (("--software", "pytorch:1950"), 'such as "pytorch"'),
        (("--software", "pytrch"), 'no figures of the framework "pytrch"; did you mean "pytorch"?'),
        (("--cluster", "dgx1-v100:1", "--devices", "16"), "8 devices"),
        (("--batch", "64", "--local-batch", "8"), "--local-batch"),
        (("--strong",), "--batch"),
        (("--length-spread", "-0.1"), "below 1"),
        (("--nccl-log", "missing.txt"), "missing.txt"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = trimaran(*instead(("scale", "lenet", "--cluster", "dgx1-v100"), *arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_usual_numbers_of_devices_are_those_that_a_cluster_has(tmp_path: Path) -> None:
    done = trimaran("scale", "lenet", "--cluster", "p3.8xlarge:1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["devices"] for row in json.loads(done.stdout)["rows"]] == [1, 2, 4]


def test_the_study_has_published_ratios_beside_ours(tmp_path: Path) -> None:
    done = trimaran("reproduce", "dgx1", "--networks", "lenet,alexnet", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lenet, alexnet = json.loads(done.stdout)["networks"]
    assert lenet["published_nccl_over_kvstore"] is None
    assert alexnet["published_nccl_over_kvstore"] == pytest.approx(4.65, abs=0.01)
    assert len(alexnet["rows"]) == 3 * 4 * 2
    assert all(ratio > 1.0 for ratio in alexnet["nccl_over_kvstore"].values())
    judged = alexnet["predicted_nccl_over_kvstore"]
    low, high = judged["interval"]
    assert (judged["local_batch_size"], judged["faster"]) == (4, "nccl")
    assert low < alexnet["published_nccl_over_kvstore"] < high
    assert lenet["predicted_nccl_over_kvstore"] is None


def test_the_fastest_method_is_said_or_that_it_is_not_sure(document: dict[str, Any], tmp_path: Path) -> None:
    """One huge layer: all-reduces are surely faster. Ten small tensors: that depends on what calls take."""
    (alexnet,) = document["faster"]
    assert (alexnet["sync"], alexnet["best"], alexnet["devices"]) == ("nccl", "nccl", 8)
    assert alexnet["ratios"]["kvstore"]["interval"][0] > 1.0
    arguments = ("scale", "lenet", "--cluster", "dgx1-v100", "--devices", "8", "--sync", "kvstore,nccl")
    (lenet,) = json.loads(trimaran(*arguments, "--json", cwd=tmp_path).stdout)["faster"]
    low, high = next(iter(lenet["ratios"].values()))["interval"]
    assert lenet["sync"] is None
    assert low < 1.0 < high
    assert "not sure" in trimaran(*arguments, cwd=tmp_path).stdout


@pytest.mark.parametrize("sync", ["server", "byteps"])
def test_servers_are_the_same_method_on_any_number_of_nodes(sync: str, tmp_path: Path) -> None:
    """More samples a second with more nodes, and not more than a server that shares its update makes of them."""
    done = trimaran(
        "scale", "alexnet", "--cluster", "dgx1-v100:4", "--devices", "8,16,32", "--sync", sync, "--local-batch", "32",
        "--servers", "2", "--price", "24 USD/node-hour", "--server-price", "3 USD/node-hour", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rates = [row["samples_per_s"] for row in document["rows"]]
    assert rates == sorted(rates)
    assert rates[2] < 4.2 * rates[0]
    assert [row["server_machines"] for row in document["rows"]] == [0, 2, 2]
    paid = [24.0 * row["nodes"] + 3.0 * row["server_machines"] for row in document["rows"]]
    costs = [hourly / 3600.0 * 1e6 / rate for hourly, rate in zip(paid, rates, strict=True)]
    assert [row["cost_of_million_samples"] for row in document["rows"]] == pytest.approx(costs)
    assert any(note.startswith(f"{sync} sums within a node") for note in document["notes"])
