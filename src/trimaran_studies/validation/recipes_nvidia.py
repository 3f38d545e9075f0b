"""NVIDIA DeepLearningExamples: the tables of their read-me files, of all revisions.

Images are real, decoded by DALI. Fine-tuning of BERT is on SQuAD with 384 tokens; pre-training has a first phase of 128
and a second of 512 with LAMB and accumulated gradients, where the tables give the batch of the whole step. Translation
counts target tokens for Transformer and tokens of both languages for GNMT; sentences of WMT have about 27 pieces.
FP32 in these containers is TF32 from Ampere on.

Source:
    NVIDIA/DeepLearningExamples: read-me files and scripts of each model.

Lambda's runs of NVIDIA's PyTorch scripts: the container of late 2020, channels first, synthetic images.

Source:
    lambdal/deeplearning-benchmark: pytorch/scripts/benchmark_pytorch.sh, config_v0, config_v2.
"""

import functools
from dataclasses import replace

from trimaran.base.files import packaged_text
from trimaran.pricing.kernels.software import Software
from trimaran_studies.validation.measurement import Row, reduced
from trimaran_studies.validation.recipes import Recipe, compiled, lowered, said

# ---------------------------------------------------------------------------------------------------------------------
# Years of the tables of NVIDIA's examples: by the container that a read-me names, or by a row's revision


_CURRENT = 2023.9
"""Revisions since then change no table: figures are as old as the container."""

_DELAY_YEARS = 0.1
"""Time from a container's release to the table made with it [years]."""

_CONTAINERS = (
    ("mxnet/classification/rn50v1.5", 2020.9),
    ("paddlepaddle/", 2022.5),
    ("pytorch/classification/", 2021.2),
    ("pytorch/detection/ssd", 2022.75),
    ("pytorch/languagemodeling/bart", 2022.6),
    ("pytorch/languagemodeling/bert", 2021.85),
    ("pytorch/translation/transformer", 2022.45),
    ("pytorch/", 2020.45),
    ("tensorflow/languagemodeling/bert/biobert", 2019.6),
    ("tensorflow/translation/gnmt", 2019.5),
    ("tensorflow2/languagemodeling/bert", 2021.1),
    ("tensorflow2/classification/", 2021.7),
    ("tensorflow2/segmentation/", 2021.1),
    ("tensorflow2/", 2021.5),
    ("tensorflow/segmentation/unet_3d", 2021.8),
    ("tensorflow", 2020.45),
)
"""Releases of the containers that read-me files of the last revision name, by the beginning of their path."""


def table_year(row: Row) -> float:
    """Year of the container of a row: by its revision, by its read-me, else by its device."""
    path, device = lowered(row, "source_path"), lowered(row, "gpu", "machine")
    revision = revisions().get(row.fields.get("commit", "")[:8])
    if revision is not None and revision < _CURRENT:
        return revision - _DELAY_YEARS
    for part, year in _CONTAINERS:
        if part in path:
            return year
    if "h100" in device or "h200" in device:
        return 2023.0
    return 2021.0 if "a100" in device else 2020.4


@functools.cache
def revisions() -> dict[str, float]:
    """Revisions of read-me files, by the first eight characters of the commit, as years."""
    text = packaged_text("trimaran_studies.facts", "nvidia_revisions.csv")
    dates = (line.split(",") for line in text.splitlines()[1:])
    return {commit: int(date[:4]) + (int(date[5:7]) - 0.5) / 12 for commit, date in dates}


WMT_PIECES = 27
"""Pieces of a sentence of WMT16 English-German in 32,000 joint pieces, sentences of more than 50 left out."""

_MEL_FRAMES = 566
"""Frames of a sentence of LJSpeech: 6.57 s at 86 frames a second."""

_TOKENS = 2000
"""Rate above which a figure of BART counts tokens: an early table counts tokens of articles of 1,024, not articles."""

_WITHOUT_PADDING = {"pytorch": 2021.7, "paddle": 2022.3}
"""Year since which BERT's pre-training leaves padding out, by framework."""

_FILLED = {"128": "100", "512": "256"}
"""Mean number of tokens of a window without padding."""

_WIDE_AND_DEEP = 131_072
"""Samples of a device in TensorFlow 1; tables truncate the figure at its comma."""

_TRANSFORMER_SCRIPTS = 2020.0
"""Year since which Transformer has a script for each machine and precision."""

_TRANSFORMER_TOKENS = 2560
"""Tokens of a V100 of 16 GiB in 32 bits."""

_BATCHES = (
    ("b4", 16),
    ("b0", 64),
    ("next", 64),
    ("transformerxl", 16),
    ("transformer-xl", 16),
    ("transformer", 2560),
    ("gnmt", 128),
    ("bert", 4),
)
"""Samples of a V100 of 16 GiB in 32 bits, or tokens for Transformer, by a word of the network's name."""

_FRAMEWORKS = (
    ("tensorflow2", "tensorflow"),
    ("tensorflow", "tensorflow"),
    ("mxnet", "mxnet"),
    ("paddle", "paddle"),
    ("pytorch", "pytorch"),
)


def nvidia_examples(row: Row) -> Recipe:
    """A row of a read-me of NVIDIA's examples."""
    framework, year, path = _framework(row), table_year(row), lowered(row, "source_path", "framework")
    recipe = Recipe(
        network=_network(row),
        software=Software(
            framework=framework,
            year=year,
            libraries="apex" if framework == "pytorch" and fused(row) else "",
            compiled=_compiled(row, framework, year),
            channels_last=_channels_last(row, framework, year),
            source="NVIDIA/DeepLearningExamples: containers of the read-me's revision",
        ),
        real_data=True,
        tf32=True,
        batch=_batch(row),
        unequal_lengths=framework == "pytorch" and _takes_sentences(row),
        exchange=_exchange(framework, year),
        wire_share=0.5 if reduced(row) and _sends_halves(row, framework) else 1.0,
        loader="dali" if framework == "mxnet" else "dali-cpu",
        batch_fixed=_batch_fixed(row, path),
        accumulated_batch=True,
        devices_per_node=True,
        machine="DGX-2" if _sixteen(row) else "",
        device="V100 16GB",  # the read-me files that name no device are of 2018 and 2019
    )
    return _language(row, recipe)


def _framework(row: Row) -> str:
    text = lowered(row, "framework", "source_path")
    return next((name for word, name in _FRAMEWORKS if word in text), "pytorch")


def _network(row: Row) -> str:
    given = said(row, "model") or said(row, "arch")
    model = row.fields.get("model", "")
    if given:
        return given
    if "biobert" in model.lower():
        return "bert-base"
    leaf = model.rsplit("/", 1)[-1]
    return "bert-large" if leaf.lower() == "bert" else leaf


def _channels_last(row: Row, framework: str, year: float) -> bool:
    """Whether tensors are channels last, for tensor cores: in MXNet's script from the start, in others since 2020."""
    if not any(word in lowered(row, "precision") for word in ("amp", "fp16", "bf16", "mixed")):
        return False
    if framework == "pytorch":
        return year >= (2020.3 if "next" in lowered(row, "source_path", "config") else 2020.7)
    return framework == "mxnet" or year >= 2020.3


def _compiled(row: Row, framework: str, year: float) -> bool:
    """TensorFlow's tables of the middle of 2020 and later are with XLA unless they say otherwise."""
    if "xla" in lowered(row, "config"):
        return compiled(row)
    return framework == "tensorflow" and year >= 2020.43


def _sixteen(row: Row) -> bool:
    """Whether a row is of a DGX-2: sixteen V100 in one node, also where the table's title has another machine."""
    gpu, nodes = row.fields.get("gpu", "V100"), row.fields.get("n_nodes", "1")
    return row.fields.get("n_gpus") == "16" and "v100" in gpu.lower() and nodes == "1"


def fused(row: Row) -> bool:
    """Whether the script takes its optimizer from Apex, which updates all weights in a few kernels."""
    return any(name in lowered(row, "model") for name in ("bert", "gnmt", "transformer"))


def _takes_sentences(row: Row) -> bool:
    """Whether batches hold sentences, padded to the longest of the batch: GNMT and Transformer; others use windows."""
    leaf = lowered(row, "model").rsplit("/", 1)[-1].strip()
    return leaf == "transformer" or leaf.startswith("gnmt")


def _batch_fixed(row: Row, path: str) -> int:
    """Batch of a device, where tables have a wrong one; 0: as in the row.

    Transformer's tables since 2020 exchange the tokens of FP32 and of mixed precision. The scripts
    behind them take 2,560 tokens in 32 bits on a DGX-1 (run_DGX1_FP32.sh), twice that in mixed precision
    (run_DGX1_AMP.sh), and twice either on a DGX-2.
    """
    if "wideanddeep" in lowered(row, "model") and "tensorflow2" not in path:
        return _WIDE_AND_DEEP
    transformer = _framework(row) == "pytorch" and lowered(row, "model").endswith("translation/transformer")
    device = lowered(row, "gpu", "machine")
    volta = "v100" in device or "a100" not in device  # the read-me files that name none
    if not (transformer and volta and table_year(row) >= _TRANSFORMER_SCRIPTS):
        return 0
    large = "dgx-2" in lowered(row, "machine") or row.fields.get("gpu_mem_gb") == "32" or _sixteen(row)
    return _TRANSFORMER_TOKENS * (2 if reduced(row) else 1) * (2 if large else 1)


def _exchange(framework: str, year: float) -> str:
    if framework == "mxnet":
        return "horovod-tuned"
    if framework != "pytorch":
        return ""
    return "apex" if year < 2020.4 else "ddp"


def _sends_halves(row: Row, framework: str) -> bool:
    """Whether weights are in 16 bits: MXNet's script, and language scripts on Apex's O2 or fairseq's FP16."""
    return framework == "mxnet" or (framework == "pytorch" and fused(row))


def _batch(row: Row) -> int:
    """Batch of a device in the scripts where a table has none: the largest that fits, half of it in 32 bits."""
    text = lowered(row, "model", "config", "gpu", "gpu_mem_gb")
    twice = 2 if reduced(row) or "a100" in text else 1
    large = 2 if row.fields.get("gpu_mem_gb") in ("32", "80") else 1
    for name, batch in _BATCHES:
        if name in text:
            return batch * twice * (large if "efficient" in text else 1)
    return 128 * twice


def _language(row: Row, recipe: Recipe) -> Recipe:
    name = recipe.network.lower()
    sequence = row.fields.get("seq_len", "")
    if "bert" in name:
        if sequence:
            if recipe.software.year >= _WITHOUT_PADDING.get(recipe.software.framework, 9999.0):
                sequence = _FILLED.get(sequence, sequence)
            guesses = {"128": "20", "512": "80"}.get(row.fields["seq_len"], str(max(1, int(sequence) * 80 // 512)))
            return replace(recipe, options={"sequence": sequence, "guesses": guesses, "optimizer": "lamb"})
        if "base" in name:
            # BioBERT's other table is named-entity recognition.
            return replace(recipe, options={"sequence": "128", "head": "squad", "optimizer": "adam"})
        return replace(recipe, options={"sequence": "384", "head": "squad", "optimizer": "adam"})
    if name == "bart" and not sequence and lowered(row, "commit")[:8] in revisions() and row.measured > _TOKENS:
        return replace(recipe, items_per_sample=1024)
    if name == "fastpitch":
        return replace(recipe, items_per_sample=_MEL_FRAMES)
    if "gnmt" in name:
        return replace(recipe, options={"sequence": str(WMT_PIECES)}, items_per_sample=2 * WMT_PIECES)
    if "transformerxl" in name or "transformer-xl" in name:
        return replace(recipe, network="transformer-xl:base", options={"sequence": "192"}, items_per_sample=192)
    if name == "transformer":
        return replace(
            recipe,
            network="transformer-big",
            options={"sequence": str(WMT_PIECES)},
            items_per_sample=WMT_PIECES,
            batch_in_items=True,
        )
    return recipe


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
        # Its ResNet-50 reads no data: --data-backend syntetic.
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
