"""Seen in the wild: a storage saved by two nodes is copied twice, or a second reference keeps it on the device."""

import torch
from tests.unit.memory_hooks.executing import executing, record

from trimaran.memory_hooks.accountant import Accountant

NBYTES = 4 * 1024 * 16


def step() -> None:
    """`made` is saved by exp (its output), by sin (its input) and, as a view, by the product."""
    x = torch.zeros(1024, 16, requires_grad=True)
    made = x.exp()
    loss = (made.sin() + made.view(16, 1024).t() @ torch.ones(16, 16)).sum() + (made.t() @ made).sum()
    del made
    loss = loss.sin()
    loss.backward()


def test_one_copy_each_way_whatever_the_number_of_nodes_and_views() -> None:
    recording = record(step)
    packed = {tick.storage for tick in recording.trace.packs}
    assert len(recording.trace.packs) > len(packed)
    with executing(recording, smallest_bytes=NBYTES) as executor:
        with executor.hooks():
            step()
        done = executor.finish_step()
        use = done.arena
    assert done.to_host_bytes == done.to_device_bytes == NBYTES
    assert use.peak_bytes == NBYTES


def test_no_second_reference_keeps_it_on_the_device() -> None:
    """Behind the last pack of the forward only the input and the loss are left."""
    recording = record(step)
    first_unpack = recording.trace.unpacks[0].moment
    accountant = Accountant()
    live: dict[int, int] = {}
    with executing(
        recording, smallest_bytes=NBYTES, observe=lambda moment: live.__setitem__(moment, accountant.made_bytes)
    ) as executor:
        with accountant, executor.hooks():
            step()
        assert executor.finish_step().ineffective == ()
    before = max(moment for moment in live if moment < first_unpack)
    assert live[before] - NBYTES < NBYTES, "the input and the products of the forward, but not `made`"
