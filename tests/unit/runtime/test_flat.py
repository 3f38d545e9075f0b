"""Several tensors as one flat one of each dtype."""

import torch

from trimaran.runtime.communication.channels import pack, unpack


def test_tensors_of_one_dtype_travel_together_and_come_back() -> None:
    """Two floats of 6 and 1 elements and a whole number: 7 and 1 elements; doubled under way."""
    tensors = [torch.ones(2, 3), torch.tensor(5), torch.full((1,), 2.0)]
    packed = pack(tensors)
    assert [(flat.dtype, flat.numel()) for flat, _ in packed] == [(torch.float32, 7), (torch.int64, 1)]
    for flat, _ in packed:
        flat.mul_(2)
    unpack(packed)
    assert torch.equal(tensors[0], torch.full((2, 3), 2.0))
    assert (int(tensors[1]), float(tensors[2])) == (10, 4.0)


def test_a_tensor_that_is_alone_is_not_copied_unless_its_memory_has_gaps() -> None:
    alone, gaps = torch.zeros(4), torch.zeros(4, 2, dtype=torch.float64)[:, 0]
    (whole, _), (copy, _) = pack([alone, gaps])
    assert whole.data_ptr() == alone.data_ptr()
    assert copy.data_ptr() != gaps.data_ptr()
    copy.fill_(3.0)
    unpack([(copy, [gaps])])
    assert gaps.tolist() == [3.0] * 4


def test_nothing_is_packed_into_nothing() -> None:
    assert list(pack([])) == []
