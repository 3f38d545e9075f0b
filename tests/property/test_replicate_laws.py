"""Laws of a step through the first device, whatever its terms."""

from hypothesis import given
from hypothesis import strategies as st

from trimaran_studies.reproduce.torch_data_parallel import (
    ABLATION,
    ALL,
    BatchCopies,
    Remedies,
    ReplicaWork,
    Transfers,
    replicated_step,
)

seconds = st.floats(0.0, 10.0)
works = st.builds(
    ReplicaWork,
    forward_s=seconds,
    backward_s=seconds,
    update_s=seconds,
    load_s=seconds,
    calls_s=seconds,
    loss_s=seconds,
)


@st.composite
def transfers(draw: st.DrawFn) -> Transfers:
    """Page-locked memory is no slower than pageable, a share no larger than the whole, and 16 bits half of 32."""
    whole, weights, gradients = draw(seconds), draw(seconds), draw(seconds)
    share, locked = draw(st.floats(0.1, 1.0)), draw(st.floats(0.1, 1.0))
    return Transfers(
        copies=BatchCopies(
            whole_s=whole,
            shares_s=whole * share,
            whole_ahead_s=whole * locked,
            shares_ahead_s=whole * share * locked,
        ),
        scatter_s=draw(seconds),
        gather_s=draw(seconds),
        weights_s=weights,
        gradients_s=gradients,
        compressed_weights_s=weights / 2,
        compressed_gradients_s=gradients / 2,
        coding_s=draw(seconds),
        making_s=draw(seconds),
    )


@given(works, transfers(), st.integers(2, 8), st.integers(1, 4))
def test_split_and_pre_load_never_lengthen_a_step_and_together_save_most(
    work: ReplicaWork, through: Transfers, devices: int, workers: int
) -> None:
    def step_s(remedies: Remedies) -> float:
        return replicated_step(work, through, devices=devices, remedies=remedies, workers=workers).step_s

    none, split, preload, _, _ = (step_s(remedies) for remedies in ABLATION)
    both = step_s(Remedies(split=True, preload=True))
    slack = 1e-9 * (1.0 + none)
    assert both <= min(split, preload) + slack
    assert max(split, preload) <= none + slack


@given(works, transfers(), st.integers(2, 8))
def test_what_compressing_costs_is_at_most_its_coding(work: ReplicaWork, through: Transfers, devices: int) -> None:
    plain = replicated_step(work, through, devices=devices).step_s
    coded = replicated_step(work, through, devices=devices, remedies=Remedies(compress=True)).step_s
    assert coded <= plain + through.coding_s + 1e-9
    assert coded >= plain - (through.weights_s + through.gradients_s) / 2 + through.coding_s - 1e-9


@given(works, transfers(), st.integers(2, 8))
def test_no_step_is_shorter_than_what_devices_compute_or_what_one_reader_loads(
    work: ReplicaWork, through: Transfers, devices: int
) -> None:
    step = replicated_step(work, through, devices=devices, remedies=ALL)
    assert step.step_s >= work.forward_s + work.backward_s + work.update_s
    assert step.step_s >= work.load_s - 1e-9
    assert replicated_step(work, through, devices=devices).step_s >= devices * work.load_s
