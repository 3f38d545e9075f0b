"""The vDNN paper's networks and policies as they come out here, beside what the paper says.

Memory is counted twice. **Paper** is the paper's own way: the buffers of Torch and cuDNN in 2016, allocated for the
whole network (the baseline) or layer by layer (its policies), with workspaces, means over time. **Trace** is ours:
every storage of a step of PyTorch as autograd packs and unpacks it, without workspaces, means over the operations of
forward and backward. Figures of the two are not to be mixed; each is compared with its own baseline.

Figures of the paper have a grade: published (in its abstract) or recalled (from its figures and from summaries of it,
not checked against the paper).
"""

from dataclasses import asdict, dataclass
from typing import Literal

Accounting = Literal["paper", "trace"]
Grade = Literal["published", "recalled"]
SOURCE = "Rhu et al., vDNN, MICRO 2016, arXiv:1602.08124"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """What the paper says of a network under a policy.

    Attributes:
        network: name of the network
        batch: samples of a step
        policy: of the paper: "none (p)", "all (m)", "dyn"
        quantity: memory that is needed, the part of the mean that is saved, or the loss of speed
        value: in bytes, or a part of 1
        text: as one writes it
        grade: where it was read
    """

    network: str
    batch: int
    policy: str
    quantity: Literal["total", "saved", "slower"]
    value: float
    text: str
    grade: Grade


PAPER_FIGURES = (
    PaperFigure(
        network="alexnet",
        batch=128,
        policy="all (m)",
        quantity="saved",
        value=0.89,
        text="89 % saved",
        grade="published",
    ),
    PaperFigure(
        network="overfeat",
        batch=128,
        policy="all (m)",
        quantity="saved",
        value=0.91,
        text="91 % saved",
        grade="published",
    ),
    PaperFigure(
        network="googlenet",
        batch=128,
        policy="all (m)",
        quantity="saved",
        value=0.95,
        text="95 % saved",
        grade="published",
    ),
    PaperFigure(
        network="vgg16",
        batch=256,
        policy="none (p)",
        quantity="total",
        value=28e9,
        text="28 GB",
        grade="published",
    ),
    PaperFigure(
        network="vgg16",
        batch=256,
        policy="dyn",
        quantity="slower",
        value=0.18,
        text="18 % slower",
        grade="published",
    ),
    PaperFigure(
        network="alexnet",
        batch=128,
        policy="none (p)",
        quantity="total",
        value=1.1e9,
        text="1.1 GB",
        grade="recalled",
    ),
    PaperFigure(
        network="vgg16",
        batch=128,
        policy="none (p)",
        quantity="total",
        value=14e9,
        text="14 GB",
        grade="recalled",
    ),
    PaperFigure(
        network="vgg416",
        batch=32,
        policy="none (m)",
        quantity="total",
        value=67.1e9,
        text="67.1 GB",
        grade="recalled",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedPolicy:
    """A network under a policy.

    Attributes:
        policy: name; (m) and (p) say which algorithms convolutions have
        accounting: how memory is counted
        fits: whether the peak is within the device
        peak_bytes: peak [bytes]
        mean_bytes: mean [bytes]
        bare_mean_bytes: mean without weights, their gradients and optimizer state [bytes]
        saved: part of the baseline's mean without weights that is saved
        slowdown: how much longer the step takes than with everything kept and the fastest algorithms: 0.02 is 2 %
        note: what else there is to say
    """

    policy: str
    accounting: Accounting
    fits: bool
    peak_bytes: int
    mean_bytes: int
    bare_mean_bytes: int
    saved: float
    slowdown: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedNetwork:
    """A network at a batch size.

    Attributes:
        network: name
        batch: samples of a step
        policies: in both accountings
        notes: what does not fit into a line
    """

    network: str
    batch: int
    policies: tuple[ReproducedPolicy, ...]
    notes: tuple[str, ...] = ()

    def figure(self, line: ReproducedPolicy) -> PaperFigure | None:
        """What the paper says of it."""
        if line.accounting != "paper":
            return None
        return next(
            (
                figure
                for figure in PAPER_FIGURES
                if (figure.network, figure.batch, figure.policy) == (self.network, self.batch, line.policy)
            ),
            None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """All networks on a device.

    Attributes:
        device: title of the device
        paper_budget_bytes: what the paper's policies may use: its pool is as large as the card [bytes]
        trace_budget_bytes: what a step of PyTorch may use: the card less its context [bytes]
        networks: in order
        source: where durations come from
    """

    device: str
    paper_budget_bytes: int
    trace_budget_bytes: int
    networks: tuple[ReproducedNetwork, ...]
    source: str


def reproduction_document(found: Reproduction) -> dict[str, object]:
    """All figures as plain data."""
    return {
        "device": found.device,
        "paper": SOURCE,
        "paper_budget_bytes": found.paper_budget_bytes,
        "trace_budget_bytes": found.trace_budget_bytes,
        "source": found.source,
        "networks": [
            {
                "network": network.network,
                "batch": network.batch,
                "policies": [
                    asdict(line) | {"paper": None if (figure := network.figure(line)) is None else asdict(figure)}
                    for line in network.policies
                ],
                "notes": list(network.notes),
            }
            for network in found.networks
        ],
    }
