"""A step through the first device, by hand: what each remedy takes out of it, and what it leaves."""

from dataclasses import replace

import pytest

from trimaran_studies.reproduce.torch_data_parallel import (
    ABLATION,
    ALL,
    NONE,
    BatchCopies,
    Remedies,
    ReplicaWork,
    Transfers,
    replicated_step,
)

WORK = ReplicaWork(load_s=0.0, forward_s=10.0, backward_s=20.0, update_s=1.0)
PASSAGES = Transfers(
    copies=BatchCopies(whole_s=8.0, shares_s=2.0, whole_ahead_s=4.0, shares_ahead_s=1.5),
    scatter_s=3.0,
    gather_s=0.5,
    weights_s=6.0,
    gradients_s=7.0,
    compressed_weights_s=3.0,
    compressed_gradients_s=3.5,
    coding_s=0.25,
)


def step(remedies: Remedies = NONE, *, work: ReplicaWork = WORK, transfers: Transfers = PASSAGES, workers: int = 1):
    return replicated_step(work, transfers, devices=4, remedies=remedies, workers=workers)


def test_without_remedies_everything_follows_everything() -> None:
    """8 copy, 3 scatter, 6 weights, 10 forward, 0.5 outputs, 20 backward, 7 gradients, 1 update."""
    assert step().step_s == pytest.approx(8 + 3 + 6 + 10 + 0.5 + 20 + 7 + 1)


@pytest.mark.parametrize(
    ("remedies", "saved_s"),
    [
        (Remedies(split=True), 6.0 + 3.0),  # 2 in the place of 8, nothing to scatter
        (Remedies(preload=True), 8.0),  # 4 of copying beside 47.5 of other work
        (Remedies(compress=True), 3.0 + 3.5 - 0.25),
        (ALL, 8.0 + 3.0 + 6.25),
    ],
)
def test_what_a_remedy_takes_out(remedies: Remedies, saved_s: float) -> None:
    assert step().step_s - step(remedies).step_s == pytest.approx(saved_s)


def test_a_copy_that_is_longer_than_the_step_is_waited_for() -> None:
    """The rest takes 47.5; a copy of 50 leaves 2.5."""
    slow = replace(PASSAGES, copies=replace(PASSAGES.copies, whole_ahead_s=50.0))
    assert step(Remedies(preload=True), transfers=slow).feed_s == pytest.approx(2.5)


def test_one_thread_loads_for_all_devices_and_split_for_its_own() -> None:
    loading = replace(WORK, load_s=5.0)
    assert step(work=loading).feed_s == pytest.approx(4 * 5 + 8)
    assert step(Remedies(split=True), work=loading).feed_s == pytest.approx(5 + 2)


def test_workers_share_what_is_loaded_ahead() -> None:
    """4 times 40 is 160; by two workers 80, of which the rest of 47.5 hides as much."""
    loading = replace(WORK, load_s=40.0)
    assert step(Remedies(preload=True), work=loading, workers=2).feed_s == pytest.approx(80 - 47.5)
    assert step(Remedies(preload=True), work=loading, workers=4).feed_s == 0.0


def test_modules_are_made_while_weights_are_on_their_way() -> None:
    assert step(transfers=replace(PASSAGES, making_s=5.0)).replicate_s == 6.0
    assert step(transfers=replace(PASSAGES, making_s=9.0)).replicate_s == 9.0
    # Then sending fewer bytes gains nothing.
    assert step(Remedies(compress=True), transfers=replace(PASSAGES, making_s=9.0)).replicate_s == 9.0


def test_threads_that_share_an_interpreter_call_one_after_another() -> None:
    """Four times 2 hide behind a forward of 10, four times 3 do not."""
    assert step(work=replace(WORK, calls_s=2.0)).forward_s == 10.0
    assert step(work=replace(WORK, calls_s=3.0)).forward_s == 12.0


def test_the_first_device_makes_the_losses_of_the_others() -> None:
    assert step(work=replace(WORK, loss_s=0.1)).gather_s == pytest.approx(0.5 + 3 * 0.1)


def test_names_are_those_of_the_ablation() -> None:
    assert [one.name for one in ABLATION] == ["none", "split", "pre-load", "compress", "all"]
    assert Remedies(split=True, compress=True).name == "split + compress"
