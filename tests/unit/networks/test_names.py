"""Spellings of networks: what people and publications write, and what must not be taken for a network of ours."""

import pytest

from trimaran.networks.names import PUBLISHED, canonical_network, parse_network, sizes_of
from trimaran_studies.facts.script_forms import SCRIPTS, trained_network

UNSAID = frozenset({"gpt", "opt", "mpt", "lstm", "gnmt"})
"""Names of jobs that say too little of a published network."""

SPELLINGS = {
    "resnet50": (
        "ResNet-50",
        "resnet_50",
        "Resnet 50",
        "ResNet50",
        "RN50",
        "ResNet-50 v1.5",
        "Classification/ConvNets/resnet50v1.5",
        "Classification/RN50v1.5",
        "tv_resnet50",
        "gluon_resnet50_v1b",
        "resnet50.a1_in1k",
        "ResNet-50 (ImageNet)",
        "ResNet-50 (batch size 64)",
        "Model=resnet50",
        "resnet50_fp16",
        "ResNet-50 224x224",
        "resnet50 (NHWC, AMP)",
        "torchvision.models.resnet50",
        "tf.keras.applications.ResNet50",
    ),
    "resnet50-v1": ("resnet50_v1", "ResNet-50 v1.0", "resnet_v1_50"),
    "resnet152": ("ResNet-152", "resnet152"),
    "resnet18-cifar": ("ResNet-18 (CIFAR-10)", "ResNet-18/CIFAR-10", "resnet18/cifar10"),
    "vgg316": ("very deep VGG-316",),
    "llama2:34b": ("CodeLlama-34B", "Code Llama 34B"),
    "mpt:1b": ("MPT-1b", "MPT-1.3b"),
    "gpt3:350m": ("GPT-3 0.35B",),
    "bert:base": ("BERT 110M",),
    "resnext50": ("ResNeXt-50", "resnext50_32x4d", "ssl_resnext50_32x4d"),
    "resnext101": ("Classification/ConvNets/resnext101-32x4d",),
    "resnext101-64x4d": ("ResNeXt-101 64x4d",),
    "se-resnet50": ("SE-ResNet-50", "seresnet50"),
    "se-resnet50-v1": ("legacy_seresnet50",),
    "se-resnext101-32x8d": ("seresnext101_32x8d",),
    "resnext101-32x16d": ("ig_resnext101_32x16d",),
    "se-resnext101": ("se-resnext101-32x4d", "gluon_seresnext101_32x4d"),
    "vgg16": ("VGG-16", "vgg16", "VGG16", "VGG-D"),
    "vgg11": ("vgg_a", "VGG-11", "OxfordNet [Model-A]"),
    "vgg16-bn": ("vgg16_bn",),
    "alexnet": ("AlexNet", "AlexNet (One Weird Trick paper)", r"Alexnet(\*16)"),
    "overfeat": ("Overfeat[fast]",),
    "googlenet": ("GoogLeNet", "googlenet-v1", "Inception-V1"),
    "inception-v3": ("InceptionV3", "inception3", "Inception-v3", "inception_v3", "tf_inception_v3"),
    "inception-v4": ("inception4", "Inception-v4"),
    "vit-b-16:image=384": ("vit_base_patch16_384", "deit_base_patch16_384"),
    "vit-s-16": ("deit_small_patch16_224",),
    "mobilenet-v2": ("MobileNetV2", "mobilenet_v2", "mobilenetv2_100"),
    "mobilenet-v3-large": ("mobilenetv3_large_100",),
    "efficientnet-b0": ("EfficientNet-B0", "efficientnet_b0"),
    "gnmt:8": ("Google NMT", "gnmt", "GNMT v2", "GNMT-8"),
    "gnmt:16": ("GNMT-16",),
    "big-lstm": ("BigLSTM", "big_lstm"),
    "bert": ("BERT", "LanguageModeling/BERT"),
    "bert:large": (
        "BERT-Large",
        "BERT-Large 340M",
        "BERT-large pretraining, seqlen 128",
        "bert_large_pretraining_phase1",
        "bert_large",
        "bert-large-uncased",
    ),
    "bert:base:head=squad": ("bert_base_squad", "LanguageModeling/BERT/biobert"),
    "bert:head=squad": ("BERT fine-tune (SQuAD)",),
    "transformer": ("Transformer", "Translation/Transformer"),
    "transformer:big": ("Transformer-big",),
    "transformer-xl:large": ("transformerxllarge",),
    "gpt2:1.5b": ("GPT2-XL", "gpt2:1.5B", "GPT-2 1.5B"),
    "gpt2:355m": ("Megatron GPT-2 345M", "gpt2-medium"),
    "gpt2:774m": ("gpt2_large",),
    "gpt3:175b": ("GPT3-175B", "GPT-3 175B"),
    "gpt3:1.3b": ("gpt3_xl",),
    "gpt3:2.7b": ("gpt3_27",),
    "gpt:22b": ("megatron-22B", "GPT 22B"),
    "opt:1.3b": ("opt_13", "facebook/opt-1.3b"),
    "opt:13b": ("OPT-13B",),
    "mpt:125m": ("MPT-125m",),
    "llama:65b": ("LLaMA-65B",),
    "llama2:7b": ("meta-llama/Llama-2-7b-hf", "LLAMA2-7B"),
    "llama3:8b": ("LLAMA3-8B", "LLAMA3_8B", "Meta-Llama-3-8B"),
    "llama3:405b": ("LLAMA3.1_405B", "LLAMA31_405B"),
}

OTHERS = (
    *(
        "deit3_small_patch16_384",
        "deit_small_distilled_patch16_224",
        "resnest50d",
        "regnetx_002",
        "resnet50d",
        "resnet26d",
        "resnet50_gn",
        "resnet51q",
        "resnetrs50",
        "resnetblur50",
    ),
    *(
        "ecaresnet50",
        "nf_resnet50",
        "resnetv2_50x1_bitm",
        "res2net50_26w_4s",
        "skresnet50",
        "resnet101_v1d",
        "tresnet_l",
    ),
    *("seresnet50t", "senet154", "seresnext26d_32x4d", "seresnext101d_32x8d", "vit_base_resnet26d_224"),
    *(
        "efficientnet-b8",
        "efficientnetv2_s",
        "mobilenetv2_140",
        "Classification/ConvNets",
        "Classification/ConvNets/efficientnet",
        "repvgg_b0",
        "squeezenet",
    ),
    *("Inception-ResNet-v2", "inception-v2", "xception", "densenet264", "UNet3P", "Segmentation/UNet_Medical", "ssd"),
    *("RoBERTa-large", "distilbert", "albert-base", "BART", "LanguageModeling/BART", "vision_transformer", "swin"),
    *("gpt-j-6b", "gpt-neox-20b", "GPT OSS 120B", "nanogpt", "GPT 52B", "GPT h2048 L20", "GPT ", "distilgpt2"),
    *(
        "tinyllama-1.1b",
        "llama4-scout",
        "llama2_70b_lora",
        "Nemotron-8B",
        "mixtral-8x7b",
        "Qwen3_30B_a3B",
        "DeepSeekV3",
    ),
    *(
        "",
        "README.md",
        "MxNet/InsightFace/ArcFace/README.md",
        "Detection/SSD",
        "LM",
        "tacotron2",
        "opt",
        "SE3Transformer",
    ),
)


@pytest.mark.parametrize(("network", "spelling"), [(name, text) for name, texts in SPELLINGS.items() for text in texts])
def test_a_customary_spelling_is_understood(network: str, spelling: str) -> None:
    assert canonical_network(spelling) == network


@pytest.mark.parametrize("spelling", OTHERS)
def test_another_network_is_not_taken_for_one_of_ours(spelling: str) -> None:
    assert canonical_network(spelling) is None


@pytest.mark.parametrize("network", SPELLINGS)
def test_every_answer_is_a_job_reference(network: str) -> None:
    assert parse_network(network) is not None


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in UNSAID])
def test_our_own_names_are_spellings_too(name: str) -> None:
    assert canonical_network(name) == name
    for size in sizes_of(name):
        spelled = [canonical_network(f"{name}{between}{size}") for between in (":", "-", " ")]
        assert spelled == [f"{name}:{size}"] * 3


@pytest.mark.parametrize(
    ("spelling", "source", "network"),
    [
        ("resnet50", "lambdal/lambda-tensorflow-benchmark", "resnet50-v1"),
        ("alexnet", "tensorflow/docs", "alexnet-tf"),
        ("alexnet", "jcjohnson/cnn-benchmarks outputs/1080", "alexnet-2012"),
        ("googlenet-v1", "jcjohnson/cnn-benchmarks outputs/1080", "googlenet-2014"),
        ("AlexNet", "soumith/convnet-benchmarks caffe/output_alexnet.log", "alexnet"),
        ("alexnet", "apache/mxnet docs", "alexnet-ungrouped"),
        ("ResNet-18", "stanford-futuredata/gavel", "resnet18-cifar"),
        ("LM", "stanford-futuredata/gavel", "lstm-wikitext2"),
        ("BERT", "Oneflow-Inc/DLPerf", "bert:base"),
        ("LanguageModeling/BERT", "NVIDIA/DeepLearningExamples", "bert:large"),
        ("bert_base_squad", "NVIDIA/DeepLearningExamples", "bert:base:head=squad"),
        ("ResNet-50 v1.5", "tensorflow/benchmarks", "resnet50"),
        ("vgg16", "tensorflow/benchmarks", "vgg16"),
        ("BERT", "mlcommons/training_results_v1.0", "bert:large"),
        ("efficientnet", "tensorflow/benchmarks", None),
    ],
)
def test_the_source_chooses_the_form(spelling: str, source: str, network: str | None) -> None:
    assert trained_network(spelling, source) == network


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.known_by)
def test_every_form_of_a_script_is_a_job_reference(script: object) -> None:
    named = [*script.forms, *script.forms.values(), *script.spelled.values()]  # type: ignore[attr-defined]
    assert [name for name in named if parse_network(name) is None] == []
