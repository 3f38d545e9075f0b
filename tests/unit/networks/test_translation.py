"""The networks that read and write rows of words: what may see what, by hand."""

import torch

from trimaran.networks.recurrent import Gnmt
from trimaran.networks.sizes import TransformerSize
from trimaran.networks.transformer import Transformer
from trimaran.networks.transformer_xl import TransformerXl, _shifted

SIZE = TransformerSize(width=32, layers=2, heads=4, dense=64, vocabulary=50, positions=8)
SOURCE = torch.tensor([[3, 1, 4, 1, 5]])
TARGET = torch.tensor([[2, 7, 1, 8]])


def test_a_transformer_does_not_see_the_words_that_it_is_asked_for() -> None:
    torch.manual_seed(0)
    model = Transformer(SIZE).eval()
    later = torch.tensor([[2, 7, 9, 8]])
    before, after = model(SOURCE, TARGET), model(SOURCE, later)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2], after[:, 2])


def test_a_transformer_sees_all_of_the_source() -> None:
    torch.manual_seed(0)
    model = Transformer(SIZE).eval()
    other = torch.tensor([[3, 1, 4, 1, 6]])
    assert not torch.allclose(model(SOURCE, TARGET)[:, 0], model(other, TARGET)[:, 0])


def test_scores_by_distance_become_scores_by_key() -> None:
    """Two queries behind one word of memory: three keys, distances 2, 1, 0 in this order.

    Query 0 stands at place 1 and query 1 at place 2. Key k is 1 - k away from the first: 1, 0, ahead; and 2 - k from
    the second: 2, 1, 0. So the first row moves by one, and what stands ahead is masked elsewhere.
    """
    by_distance = torch.tensor([[2.0, 1.0, 0.0], [12.0, 11.0, 10.0]]).view(1, 1, 2, 3)
    by_key = _shifted(by_distance)[0, 0]
    assert by_key[0, :2].tolist() == [1.0, 0.0]
    assert by_key[1].tolist() == [12.0, 11.0, 10.0]


def test_transformer_xl_does_not_see_the_words_that_it_is_asked_for() -> None:
    torch.manual_seed(0)
    model = TransformerXl(SIZE, cutoffs=(20, 30, 40)).eval()
    words, later = torch.tensor([[2, 27, 33, 8]]), torch.tensor([[2, 27, 45, 8]])
    before, after = model(words)[0], model(later)[0]
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2], after[:, 2])


def test_the_vector_of_a_word_is_that_of_its_cluster() -> None:
    """Word 27 is the eighth of the second cluster, from 20 to 30."""
    model = TransformerXl(SIZE, cutoffs=(20, 30, 40))
    found = model._embed(torch.tensor([[27]]))[0, 0]
    torch.testing.assert_close(found, model.words[1][7] * SIZE.width**0.5)


def test_the_languages_of_the_smaller_gnmt_share_an_embedding() -> None:
    apart, shared = Gnmt(50, width=8, layers=2), Gnmt(50, width=8, layers=2, shared=True)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (apart, shared)]
    assert sizes[0] - sizes[1] == 50 * 8
