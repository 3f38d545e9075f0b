"""From the division of a transformer to what other runtimes are told."""

from trimaran.costs.transformers.division import Division
from trimaran.session.export.from_division import recipe_of_division
from trimaran.session.export.megatron import to_megatron
from trimaran.session.export.torchtitan import to_torchtitan

FIGURES = {"job": "llama2:70b", "global_batch_size": 64, "sequence_length": 4096, "precision": "bf16"}


def test_uneven_parts_are_kept() -> None:
    division = Division(
        tensor=8, pipeline=2, chunks=2, data=4, microbatches=16, parts=(1, 3, 3, 1), sequence_parallel=True
    )
    recipe = recipe_of_division(division, layers=8, **FIGURES)
    assert recipe.devices == division.devices == 64
    model = to_megatron(recipe).sections["model"]
    assert model["pipeline_model_parallel_layout"] == "Et|t*3|t*3|tL"
    named = to_torchtitan(recipe).sections["parallelism"]["module_fqns_per_model_part"]
    assert named == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "layers.3"],
        ["layers.4", "layers.5", "layers.6"],
        ["layers.7", "norm", "lm_head"],
    ]


def test_layers_that_do_not_divide_go_to_the_first_parts() -> None:
    recipe = recipe_of_division(Division(pipeline=4), layers=10, **FIGURES)
    assert [stage.layers for stage in recipe.stages] == [3, 3, 2, 2]


def test_recompute_and_sharding_have_the_names_of_the_field() -> None:
    division = Division(data=8, sharding="parameters", recomputed=frozenset({"layers"}))
    recipe = recipe_of_division(division, layers=8, **FIGURES)
    assert (recipe.zero, recipe.recompute) == (3, "full")
    recipe = recipe_of_division(Division(recomputed=frozenset({"attention"})), layers=8, **FIGURES)
    assert recipe.recompute == "selective"
    assert to_megatron(recipe).sections["model"]["recompute_granularity"] == "selective"
