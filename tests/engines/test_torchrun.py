"""torchrun over two nodes, as docs/torchrun.md says: a node is killed and comes back, or does not."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines.nodes import Node, environment, network, obstacle, wait_for
from tests.engines.training import (
    EPOCH,
    EPOCHS,
    EVERY,
    EXAMPLE,
    STEPS,
    WEIGHTS,
    Steps,
    assert_equal,
    blocks,
    done_again,
    prepare,
    steps_of,
    train_undisturbed,
)

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "there can be nodes"),
]

SOON_S = 120.0
FIXED, ELASTIC = blocks("torchrun.md", "bash", "torchrun")
EACH = "--nproc-per-node "


class Training:
    """A training on two nodes.

    Attributes:
        folder: that both see
        nodes: node1, which keeps torchrun's list of nodes, and node2
    """

    def __init__(self, folder: Path, nodes: list[Node], command: str, epochs: int = EPOCHS) -> None:
        self.folder, self.nodes = folder, nodes
        prepare(folder, epochs=epochs)
        (folder / "start.sh").write_text(command)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        for node in nodes:
            self.start(node)

    def start(self, node: Node) -> None:
        """Run the command of the page on a node."""
        self.agents[node.name] = node.run(["bash", "start.sh"], log=self._log(node), cwd=self.folder, env=environment())

    def _log(self, node: Node) -> Path:
        return self.folder / f"{node.name}.log"

    @property
    def steps(self) -> Steps:
        return steps_of(*map(self._log, self.nodes))

    def wait_for_steps(self, count: int) -> float:
        """Wait until so many more were printed; the time that it took [s]."""
        begun, before = time.monotonic(), len(self.steps)
        wait_for(lambda: len(self.steps) >= before + count, f"{count} more steps", SOON_S, self.told)
        return time.monotonic() - begun

    def end(self, limit_s: float = SOON_S) -> dict[str, int]:
        """Wait for the end on every node; exit codes."""
        return {name: agent.wait(limit_s) for name, agent in self.agents.items()}

    def told(self) -> str:
        lines = {node.name: self._log(node).read_text(errors="replace").splitlines() for node in self.nodes}
        return "\n".join(f"{name}: {line}" for name, text in lines.items() for line in text[-40:])

    @property
    def weights(self) -> bytes:
        return (self.folder / WEIGHTS).read_bytes()


Start = Callable[..., Training]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with network(2, hosts_in=tmp_path) as nodes:
        yield lambda command, **options: Training(tmp_path / "training", nodes, command, **options)
        names = [node.processes() for node in nodes]
    assert all(not Path(f"/proc/{pid}").exists() for found in names for pid in found)


def test_the_page_shows_the_example() -> None:
    assert blocks("torchrun.md", "python", "trimaran.init") == [EXAMPLE.read_text()]


@pytest.mark.sweep
@pytest.mark.parametrize("each", [1, 2])
def test_a_node_that_is_killed_and_comes_back_costs_the_steps_since_the_last_checkpoint(
    start: Start, tmp_path: Path, each: int, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """With so many ranks on each of two nodes. Losses and weights are those of ranks that nothing happened to."""
    assert f"{EACH}2 " in FIXED
    training = start(FIXED.replace(f"{EACH}2", f"{EACH}{each}"))
    _, second = training.nodes
    training.wait_for_steps(2 * EVERY + 20)
    second.stop()
    done, killed = training.steps, time.monotonic()
    assert len(done) < STEPS
    second.boot()
    training.start(second)
    training.wait_for_steps(1)
    record_testsuite_property("seconds without a step", time.monotonic() - killed)
    assert training.end() == {"node1": 0, "node2": 0}, training.told()
    record_testsuite_property("steps done again", done_again(training.steps))
    # The checkpoint of the last 50 may still have been on its way.
    assert 0 < done_again(training.steps) <= 2 * EVERY
    assert_equal(training.steps, training.weights, train_undisturbed(tmp_path / "undisturbed", 2 * each))


@pytest.mark.sweep
def test_the_node_that_is_left_goes_on_alone_and_the_other_joins_it_again(
    start: Start, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """With --nnodes 1:2. Alone, each loss is that of one rank that goes on from the same checkpoint, bit for bit.

    When the node comes back, the two ranks are stopped after a step and save: no step is done again.
    """
    # Many, so that the node has come back before they are done.
    epochs = 120
    command = ELASTIC.replace(f"{EACH}2", f"{EACH}1").replace("--rdzv-id", "--rdzv-conf last_call_timeout=3 --rdzv-id")
    training = start(command, epochs=epochs)
    _, second = training.nodes
    training.wait_for_steps(2 * EVERY + 20)
    second.stop()
    killed = time.monotonic()
    shutil.copytree(training.folder / "checkpoints", tmp_path / "saved")
    together = training.steps
    wait_for(lambda: len(training.steps) > len(together) + 20, "steps alone", SOON_S, training.told)
    record_testsuite_property("seconds without a step, alone afterwards", time.monotonic() - killed)
    second.boot()
    training.start(second)
    assert training.end(400.0) == {"node1": 0, "node2": 0}, training.told()
    alone = dict(train_undisturbed(tmp_path / "alone", 1, checkpoints=tmp_path / "saved", epochs=epochs)[0])
    begun = next(iter(alone))
    steps = training.steps
    assert {number for number, _ in steps} == set(range(1, epochs * EPOCH + 1))
    first_alone = next(at for at, (number, _) in enumerate(steps) if at and number <= steps[at - 1][0])
    assert steps[first_alone][0] == begun
    follow = steps[first_alone:]
    assert follow[:20] == [(number, alone[number]) for number, _ in follow[:20]]
    # One break only: when the other node came, nothing was done again.
    assert [number for number, _ in follow] == list(range(begun, epochs * EPOCH + 1))
    assert "SIGTERM ended the training after step" in (training.folder / "node1.log").read_text()
    record_testsuite_property("steps done again", done_again(steps))
    assert training.weights


@pytest.mark.sweep
def test_a_node_that_falls_silent_is_missed_and_training_goes_on_when_it_answers_again(
    start: Start, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Its cable is pulled: no connection is closed, and all processes live. With `hang_timeout=15`."""
    patient = "trimaran.init(make_job())"
    training = start(
        f"sed -i 's/{patient}/trimaran.init(make_job(), hang_timeout=15)/' train.py\n"
        + FIXED.replace(f"{EACH}2", f"{EACH}1")
    )
    _, second = training.nodes
    training.wait_for_steps(2 * EVERY + 20)
    second.cable("down")
    pulled = time.monotonic()
    wait_for(lambda: "lost contact with rank" in training.told(), "word of the silent node", 60.0, training.told)
    record_testsuite_property("seconds until missed", time.monotonic() - pulled)
    assert time.monotonic() - pulled < 15 + 15
    second.cable("up")
    training.wait_for_steps(1)
    record_testsuite_property("seconds without a step", time.monotonic() - pulled)
    assert training.end() == {"node1": 0, "node2": 0}, training.told()
    assert 0 < done_again(training.steps) <= 2 * EVERY
    assert_equal(training.steps, training.weights, train_undisturbed(tmp_path / "undisturbed", 2))


@pytest.mark.sweep
def test_the_loss_of_the_node_that_keeps_the_list_ends_torchrun_and_it_is_started_again(
    start: Start, tmp_path: Path
) -> None:
    training = start(FIXED)
    first, _ = training.nodes
    training.wait_for_steps(2 * EVERY + 20)
    first.stop()
    assert training.agents["node2"].wait(SOON_S) == 1, training.told()
    first.boot()
    for node in training.nodes:
        training.start(node)
    assert training.end() == {"node1": 0, "node2": 0}, training.told()
    assert 0 < done_again(training.steps) <= 2 * EVERY
    assert_equal(sorted(training.steps), training.weights, train_undisturbed(tmp_path / "undisturbed", 4))


@pytest.mark.sweep
def test_sigterm_to_torchrun_of_one_node_saves_and_nothing_is_done_again(start: Start, tmp_path: Path) -> None:
    """As of a scheduler that empties a node. The other torchrun waits for a node, and gets it."""
    training = start(FIXED)
    _, second = training.nodes
    training.wait_for_steps(EVERY + 20)
    assert second.signal(signal.SIGTERM, "torchrun") >= 1
    assert training.agents["node2"].wait(SOON_S) != 0
    training.start(second)
    assert training.end() == {"node1": 0, "node2": 0}, training.told()
    assert done_again(training.steps) == 0
    assert_equal(training.steps, training.weights, train_undisturbed(tmp_path / "undisturbed", 4))
