"""`python -m trimaran_studies reproduce vdnn`, in simulation and for real."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    done = trimaran(
        "reproduce", "vdnn", "--networks", "alexnet,vgg16:256", "--json", cwd=tmp_path_factory.mktemp("simulated")
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_networks_and_batches_are_those_that_were_asked_for(simulated):
    assert [(one["network"], one["batch"]) for one in simulated["networks"]] == [("alexnet", 128), ("vgg16", 256)]


def test_the_papers_figures_stand_beside_ours_with_their_grade(simulated):
    (alexnet, vgg) = simulated["networks"]
    saved = next(one for one in alexnet["policies"] if one["policy"] == "all (m)")
    assert saved["paper"]["value"] == 0.89
    assert saved["paper"]["grade"] == "published"
    none = next(one for one in vgg["policies"] if one["policy"] == "none (p)")
    assert (none["paper"]["text"], none["fits"]) == ("28 GB", False)


def test_both_accountings_have_the_papers_policies_and_ours_is_there(simulated):
    vgg = simulated["networks"][1]["policies"]
    paper = [one["policy"] for one in vgg if one["accounting"] == "paper"]
    assert paper == ["none (p)", "none (m)", "all (m)", "all (p)", "conv (m)", "conv (p)", "dyn"]
    trace = {one["policy"]: one for one in vgg if one["accounting"] == "trace"}
    assert {"none", "all", "conv", "trimaran"} <= set(trace)
    assert trace["trimaran"]["peak_bytes"] <= simulated["trace_budget_bytes"]
    assert trace["trimaran"]["slowdown"] < trace["all"]["slowdown"]


def test_tables_fit_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = trimaran("reproduce", "vdnn", "--networks", "vgg16:256", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "…" not in done.stdout
    assert "28 GB" in done.stdout


def test_a_run_for_real_holds_exactly_what_was_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a CPU: peaks within 1 %, results equal bit for bit; GoogLeNet branches and joins."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = trimaran("reproduce", "vdnn", "--real", "--networks", "googlenet", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    peaks = {one["policy"]: one["accounted_peak_bytes"] for one in run["policies"]}
    for one in run["policies"]:
        assert one["equal"]
        assert one["accounted_peak_bytes"] == pytest.approx(one["predicted_peak_bytes"], rel=0.01)
        assert one["accounted_mean_bytes"] == pytest.approx(one["predicted_mean_bytes"], rel=0.01)
    assert peaks["all"] < 0.6 * peaks["none"]
    assert peaks["trimaran"] <= 0.7 * peaks["none"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--networks", "resnet50"), "alexnet"),
        (("--networks", "vgg16:many"), "many"),
        (("--device", "voodoo"), "voodoo"),
        (("--real", "--networks", "vgg416"), "vgg416"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str):
    done = trimaran("reproduce", "vdnn", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.sweep
def test_the_split_of_a_step_is_measured_here_with_both_exchanges(tmp_path: Path):
    """The parts sum to what a clock of its own says; the two exchanges differ in what they call."""
    done = trimaran("reproduce", "dgx1", "--real", "--networks", "lenet", "--steps", "8", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (lenet,) = json.loads(done.stdout)["networks"]
    assert (lenet["network"], lenet["devices"], lenet["tensors"]) == ("lenet", 2, 10)
    reduced, homes = lenet["exchanges"]
    assert (reduced["sync"], reduced["calls"], homes["sync"], homes["calls"]) == ("all-reduce", 1, "p2p", 20)
    for exchange in (reduced, homes):
        assert abs(exchange["missing"]) <= 0.01
        measured = exchange["measured"]
        assert min(measured["forward_s"], measured["backward_s"], measured["update_s"]) > 0.0
        wu_s = measured["exposed_s"] + measured["update_s"] + measured["overhead_s"]
        assert measured["wu_s"] == pytest.approx(wu_s)
        assert set(exchange["error"]) == {
            "forward", "backward", "exposed", "update", "overhead", "overlapped", "step",
        }  # fmt: skip


def test_an_exchange_needs_two_devices_that_are_there(tmp_path: Path):
    done = trimaran("reproduce", "dgx1", "--real", "--devices", "1", cwd=tmp_path)
    assert (done.returncode, "from 2 devices" in done.stderr) == (2, True)
