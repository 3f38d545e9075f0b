"""Tests of Megatron-LM by name: published arguments, and names that are not listed."""

from trimaran_studies.validation.memory import degrees_of, megatron_case, padded_vocabulary, shape_of

FOLDER = "tests/functional_tests/test_cases"


def test_a_listed_test_has_its_published_arguments() -> None:
    case = megatron_case(f"{FOLDER}/gpt/gpt3_7b_tp1_pp4_memory_speed/golden_values_dev_dgx_a100.json")
    assert case is not None
    assert case.listed
    shape, degrees = shape_of(case), degrees_of(case, 8)
    assert (shape.layers, shape.hidden, shape.kv_heads, shape.sequence, shape.vocabulary) == (32, 4096, 8, 8192, 131200)
    assert (degrees.pp, degrees.chunks, degrees.dp, degrees.zero) == (4, 8, 2, 1)


def test_a_gated_network_without_an_inner_size_has_two_thirds_of_four_times() -> None:
    """int(4 · 512 · 2 / 3) to the next lower multiple of 64."""
    case = megatron_case(f"{FOLDER}/gpt/gpt3_mcore_te_tp1_pp4_swiglu/x.json")
    assert case is not None
    assert (shape_of(case).ffn, shape_of(case).gated) == (1344, True)


def test_a_layout_in_words_becomes_parts() -> None:
    """Et*3|(tt|)*6mL: three layers, six times two, and none beside the loss."""
    case = next(
        found
        for name in ("gpt3_moe_mcore_te_tp2_pp2_ep4_etp1_no_mtp_no_a2a_ovlp_fine_grained_offloading",)
        if (found := megatron_case(f"{FOLDER}/moe/{name}/x.json")) is not None
    )
    assert degrees_of(case, 8).segment_layers == (3, 2, 2, 2, 2, 2, 2, 0)


def test_a_name_that_is_not_listed_is_read() -> None:
    case = megatron_case(f"{FOLDER}/gpt/gpt3_mcore_te_tp2_pp4_cp2_swiglu_dist_optimizer_new/x.json")
    assert case is not None
    assert not case.listed
    degrees = degrees_of(case, 16)
    assert (degrees.tp, degrees.pp, degrees.cp, degrees.dp) == (2, 4, 2, 1)
    assert degrees.zero == 1
    assert shape_of(case).gated


def test_other_paths_name_no_test() -> None:
    assert megatron_case("experiments/gpt2.md") is None


def test_vocabularies_are_padded_to_a_multiple_for_each_rank() -> None:
    assert [padded_vocabulary(50257, tensor=ranks) for ranks in (1, 2, 4, 8)] == [50304, 50432, 50688, 51200]
