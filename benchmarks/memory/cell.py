"""One case and one arm, in a process of its own: gets ready, waits for the word, measures, prints its row.

ready      imports, the network on the CPU            (meanwhile another process may compute)
word       a line with the oracle's row
device     the card's limit, the network on the device
time       steps, first some that do not count
likeness   two steps from the first weights, with deterministic kernels
traffic    one step whose copies are counted
"""

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
from benchmarks.memory import card, clock, foreign, likeness  # noqa: E402
from benchmarks.memory.cases import ORACLE, Arm, Case  # noqa: E402
from benchmarks.memory.foreign import AbsentError, Runner  # noqa: E402
from benchmarks.memory.models import Training, build, prepare, set_precision  # noqa: E402
from benchmarks.memory.processes import MARK  # noqa: E402
from benchmarks.memory.traffic import count_traffic  # noqa: E402

from trimaran.base.errors import InfeasibleError  # noqa: E402

MOST_SETTLING = 25
"""Further steps until an arm must run as it will."""


def main() -> None:
    order = json.loads(sys.argv[1])
    case, arm = Case(**order["case"]), Arm(**order["arm"])
    device, quick = order["device"], order["quick"]
    if device == "cpu":
        torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, blocks = build(case)
    word = json.loads(sys.stdin.readline())
    start_s = time.monotonic()
    try:
        set_precision(case.precision)
        limit = card.emulate(case, arm, word, device)
        row = measure(prepare(model, blocks, case, device), arm, limit, word, quick=quick)
    except AbsentError as error:
        row = {"status": "absent", "error": str(error)}
    except InfeasibleError as error:
        row = {"status": "refused", "error": str(error)}
    except torch.OutOfMemoryError as error:
        row = {"status": "out of memory", "error": str(error)[:300], **card.memory(device, None)}
    except Exception as error:  # noqa: BLE001 a failure is a row
        row = {"status": "failed", "error": f"{type(error).__name__}: {error}"[:500]}
    print(MARK + json.dumps({**row, "took_s": time.monotonic() - start_s}), flush=True)


def measure(
    training: Training, arm: Arm, limit: card.Limit, word: dict[str, Any] | None, *, quick: bool
) -> dict[str, Any]:
    """The figures of a pair."""
    device = training.device
    state = {name: tensor.to("cpu", copy=True) for name, tensor in training.model.state_dict().items()}
    runner = run_arm(training, arm, limit, word)
    try:
        settle(runner)
        resident_bytes = card.restart(device)
        retries = card.retries(device)
        row = clock.time_steps(runner.step, device=device, quick=quick)
        steps = row["steps"] + (0 if quick else clock.WARM_UP)
        row["retries_per_step"] = None if retries is None else ((card.retries(device) or 0) - retries) / steps
        row |= card.memory(device, runner.step) | {"resident_bytes": resident_bytes}
        row |= {"budget_bytes": limit.budget_bytes, "context_bytes": limit.context_bytes}
        row |= runner.figures()
        row["held"] = limit.budget_bytes is None or row["peak_bytes"] <= limit.budget_bytes
        if row.get("predicted_peak_bytes") is not None:
            row["peak_error_bytes"] = row["peak_bytes"] - row["predicted_peak_bytes"]
        if runner.counted:
            row |= count_traffic(runner.step)
        if runner.compared:
            losses, found = likeness.digests(training, runner.step, state)
            row |= compare(losses, found, word, training, runner, state)
    finally:
        runner.close()
    return {"status": "ok", **row}


def settle(runner: Runner) -> None:
    """Steps that do not count: no plan is made in those that do."""
    for _ in range(runner.settle):
        runner.step()
    for _ in range(MOST_SETTLING):
        if runner.settled():
            return
        runner.step()


def compare(
    losses: list[float],
    found: likeness.Digests,
    word: dict[str, Any] | None,
    training: Training,
    runner: Runner,
    state: dict[str, torch.Tensor],
) -> dict[str, Any]:
    """Set beside the oracle's; the oracle, which keeps its digests for the others, beside itself."""
    if word is None:
        _, again = likeness.digests(training, runner.step, state)
        return {"losses": losses, "digests": found, "likeness": likeness.compare(again, found)}
    return {"losses": losses, "likeness": likeness.compare(found, word["digests"])}


def run_arm(training: Training, arm: Arm, limit: card.Limit, word: dict[str, Any] | None) -> Runner:
    """Set an arm up."""
    if arm.name == ORACLE:
        return foreign.oracle(training)
    if arm.name == "checkpoint":
        return foreign.checkpointed(training)
    if arm.name == "torchtune":
        return foreign.torchtune(training)
    if arm.name.startswith("save_on_cpu"):
        return foreign.save_on_cpu(training, page_locked=arm.name == "save_on_cpu")
    if arm.name == "compile":
        return foreign.compiled(training, budget=card.activation_share(limit, word))
    from benchmarks.memory.virtual import policy, product

    return product(training, limit) if arm.name == "ours" else policy(training, arm.name, limit)


if __name__ == "__main__":
    main()
