"""Forms of networks in known training scripts, where they differ from the usual form.

A script is recognised by words of a figure's repository or path. These are facts of the scripts, each with its file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.networks.names import canonical_network


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptForms:
    """Networks that a collection of scripts trains.

    Attributes:
        known_by: pattern of its repository or path, in lower case
        forms: Trimaran's name of the network that it trains, by the usual name
        spelled: Trimaran's name, by a spelling that only this collection uses
        source: the files that show it
    """

    known_by: str
    forms: Mapping[str, str]
    spelled: Mapping[str, str]
    source: str


_TF_RESNETS = {f"resnet{depth}": f"resnet{depth}-v1" for depth in (50, 101, 152)}

SCRIPTS: tuple[ScriptForms, ...] = (
    ScriptForms(
        known_by=r"tf_cnn_benchmarks|tensorflow-benchmark|tensorflow/benchmarks|tensorflow/docs|horovod/horovod",
        forms={"alexnet": "alexnet-tf", "googlenet": "googlenet-2014", **_TF_RESNETS},
        spelled={},
        source="tensorflow/benchmarks, scripts/tf_cnn_benchmarks/models: alexnet_model, googlenet_model, resnet_model "
        "(bottleneck_block_v1); Horovod's published figures are of these scripts",
    ),
    ScriptForms(
        known_by=r"convnet-benchmarks",
        forms={"googlenet": "googlenet-2014"},
        spelled={},
        source="soumith/convnet-benchmarks, torch7/imagenet_winners: alexnet of 2014, googlenet without batch norm",
    ),
    ScriptForms(
        known_by=r"jcjohnson|\bcnn-benchmarks",
        forms={"alexnet": "alexnet-2012", "googlenet": "googlenet-2014"},
        spelled={},
        source="jcjohnson/cnn-benchmarks, README: AlexNet and Inception-v1 are converted from Caffe's models",
    ),
    ScriptForms(
        known_by=r"apache/(?:incubator-)?mxnet|dmlc/mxnet",
        forms={"alexnet": "alexnet-ungrouped", "googlenet": "googlenet-2014"},
        spelled={},
        source="apache/mxnet, example/image-classification/symbols: alexnet.py, googlenet.py",
    ),
    ScriptForms(
        known_by=r"caffe",
        forms={"alexnet": "alexnet-2012", "googlenet": "googlenet-2014"},
        spelled={},
        source="BVLC/caffe, models: bvlc_alexnet, bvlc_googlenet",
    ),
    ScriptForms(
        known_by=r"gavel",
        forms={"resnet18": "resnet18-cifar"},
        spelled={"lm": "lstm-wikitext2"},
        source="stanford-futuredata/gavel, workloads/pytorch: image_classification/cifar10, language_modeling",
    ),
    ScriptForms(
        known_by=r"mlperf|mlcommons",
        forms={"bert": "bert:large", "transformer": "transformer:big"},
        spelled={},
        source="mlcommons/training: language_model (BERT-large), retired_benchmarks/transformer (big)",
    ),
    ScriptForms(
        known_by=r"dlperf",
        forms={"bert": "bert:base"},
        spelled={},
        source="Oneflow-Inc/DLPerf: BERT is the base one where its size is not said",
    ),
    ScriptForms(
        known_by=r"deeplearningexamples",
        forms={"bert": "bert:large", "bert:head=squad": "bert:large:head=squad", "transformer": "transformer:big"},
        spelled={},
        source="NVIDIA/DeepLearningExamples, LanguageModeling/BERT and Translation/Transformer: the large ones",
    ),
)


def trained_network(text: str, source: str) -> str | None:
    """The network that a name means in a source.

    Args:
        text: the name, or a path that ends in it
        source: where the name comes from, such as a repository and a path in it; chooses the form that is trained there

    Returns:
        A job reference, the usual one unless the source has another form; None: the network is not known.

    Example:
        >>> trained_network("resnet50", "tensorflow/benchmarks"), trained_network("resnet50", "")
        ('resnet50-v1', 'resnet50')
    """
    reference, spelled, where = canonical_network(text), text.strip().lower(), source.lower()
    for script in SCRIPTS:
        if not re.search(script.known_by, where):
            continue
        if reference is None:
            return script.spelled.get(spelled)
        # A version of ResNet that is spelled out is meant.
        return reference if "1.5" in spelled else script.forms.get(reference, reference)
    return reference
