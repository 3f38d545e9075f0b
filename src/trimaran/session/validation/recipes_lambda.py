"""Lambda's runs of NVIDIA's PyTorch scripts: the container of late 2020, channels first, images that are made up.

Source:
    lambdal/deeplearning-benchmark: pytorch/scripts/benchmark_pytorch.sh, config_v0, config_v2.
"""

from dataclasses import replace

from trimaran.costs.software import Software
from trimaran.session.validation.cells import reduced
from trimaran.session.validation.recipes import Recipe
from trimaran.session.validation.recipes_nvidia import WMT_PIECES, fused
from trimaran.session.validation.types import Row


def lambda_pytorch(row: Row) -> Recipe:
    """A row of Lambda's PyTorch tables: NVIDIA's scripts in the container of October 2020 or later, channels first."""
    model = row.fields.get("model", "").lower()
    recipe = Recipe(
        network=model,
        software=Software(
            framework="pytorch",
            year=2020.8,
            libraries="apex" if fused(row) else "",
            source="lambdal/deeplearning-benchmark: pytorch/ (NGC 20.10)",
        ),
        # Its ResNet-50 reads nothing: --data-backend syntetic.
        real_data=model == "ssd",
        exchange="ddp",
        wire_share=0.5 if reduced(row) and fused(row) else 1.0,
        tf32=True,
    )
    if model.startswith("bert"):
        size = "large" if "large" in model else "base"
        options = {"sequence": "384", "head": "squad", "optimizer": "adam"}
        return replace(recipe, network=f"bert-{size}", options=options)
    if model.startswith("gnmt"):
        return replace(
            recipe,
            options={"sequence": str(WMT_PIECES)},
            items_per_sample=2 * WMT_PIECES,
            unequal_lengths=True,
        )
    if model.startswith("transformerxl"):
        length = 256 if "large" in model else 192
        return replace(recipe, options={"sequence": str(length)}, items_per_sample=length)
    return recipe
