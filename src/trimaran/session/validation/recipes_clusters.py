"""Two studies of schedulers: Gavel's rates of jobs on three kinds of GPU, and Pollux's step times on T4.

Gavel's figure is steps of all devices together each second; the batch is that of one device, the jobs are PyTorch's of
2019. Its "unconsolidated" placement puts each worker on a machine of its own. Pollux's jobs run in AdaptDL on PyTorch.

Source:
    stanford-futuredata/gavel: workloads/pytorch, scheduler/; petuum/adaptdl: simulator/traces, examples/.
"""

from dataclasses import replace

from trimaran.costs.software import Software
from trimaran.session.validation.recipes import Recipe, lowered
from trimaran.session.validation.types import Row

MULTI30K_PIECES = 30
"""Pieces of a sentence of Multi30k, padded to the longest of its batch."""


def gavel(row: Row) -> Recipe:
    """A row of Gavel's tables."""
    model = row.fields.get("model", "").lower()
    recipe = Recipe(
        network=model,
        software=Software(framework="pytorch", year=2019.5, source="stanford-futuredata/gavel: PyTorch 1.1 to 1.4"),
        real_data="resnet" in model,
    )
    if model in ("lm", "language model"):
        return replace(recipe, network="lm", options={"sequence": "35"})
    if model == "transformer":
        return replace(
            recipe,
            network="transformer-base",
            options={"sequence": str(MULTI30K_PIECES), "vocabulary": "9500"},
            unequal_lengths=True,
        )
    return recipe


def pollux(row: Row) -> Recipe:
    """A row of Pollux's traces."""
    model = lowered(row, "model")
    recipe = Recipe(
        network=row.fields.get("model", "").split("(")[0].strip(),
        software=Software(framework="pytorch", year=2020.5, source="petuum/adaptdl: examples, PyTorch 1.5 to 1.7"),
        real_data="imagenet" in model or "cifar" in model,
    )
    if "cifar" in model:
        return replace(recipe, network="resnet18-cifar")
    if "bert" in model:
        return replace(recipe, network="bert-base", options={"sequence": "384", "head": "squad", "optimizer": "adamw"})
    return recipe
