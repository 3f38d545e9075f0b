"""What is public of the study of feeding several GPUs: what it saves, in its abstract.

It calls its rival "modern data parallelism". Networks, batches, cards and software are not in the abstract.

Source:
    W. Xu, A. Pattnaik, G. Yuan, Y. Wang, Y. Zhang, X. Tang, "ScaleDNN: Data Movement Aware DNN Training on Multi-GPU",
    ICCAD 2021, doi 10.1109/ICCAD51958.2021.9643503: up to 39.38 % of the time, 17.96 % on average, over PCIe; up to
    19.20 %, 10.26 % on average, over NVLink.
"""

from dataclasses import dataclass

SOURCE = "Xu et al., ScaleDNN, ICCAD 2021, abstract; doi 10.1109/ICCAD51958.2021.9643503"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSaving:
    """Time that its three remedies save together.

    Attributes:
        mean: over its networks, as a share of the step
        most: of one of them
    """

    mean: float
    most: float


PUBLISHED_SAVINGS = {
    "PCIe": PublishedSaving(mean=0.1796, most=0.3938),
    "NVLink": PublishedSaving(mean=0.1026, most=0.1920),
}
"""By the links between the GPUs."""
