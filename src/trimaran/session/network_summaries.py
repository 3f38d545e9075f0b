"""The published networks by name, a line each for people. M is a million parameters.

What makes their jobs is `network_jobs.py`, which imports torch; this does not.
"""

from collections.abc import Mapping

NETWORK_SUMMARIES: Mapping[str, str] = {
    "alexnet": "AlexNet, 61 M; synthetic images of 224 × 224",
    "overfeat": "OverFeat's fast model, 146 M; synthetic images of 231 × 231",
    "vgg11": "VGG-11, 133 M; synthetic images of 224 × 224",
    "vgg13": "VGG-13, 133 M; synthetic images of 224 × 224",
    "vgg16": "VGG-16, 138 M; synthetic images of 224 × 224",
    "vgg19": "VGG-19, 144 M; synthetic images of 224 × 224",
    "vgg116": "VGG-16 with 20 more convolutions a group, 248 M; synthetic images of 224 × 224",
    "vgg216": "VGG-16 with 40 more convolutions a group, 358 M; synthetic images of 224 × 224",
    "vgg316": "VGG-16 with 60 more convolutions a group, 468 M; synthetic images of 224 × 224",
    "vgg416": "VGG-16 with 80 more convolutions a group, 578 M; synthetic images of 224 × 224",
    "googlenet": "GoogLeNet with batch norm, 6.6 M; synthetic images of 224 × 224",
    "googlenet-2014": "GoogLeNet as published, without batch norm, 7.0 M; synthetic images of 224 × 224",
    "inception-v3": "Inception-v3, 24 M; synthetic images of 299 × 299",
    "resnet18": "ResNet-18, 12 M; synthetic images of 224 × 224",
    "resnet34": "ResNet-34, 22 M; synthetic images of 224 × 224",
    "resnet50": "ResNet-50, 26 M; synthetic images of 224 × 224",
    "resnet101": "ResNet-101, 45 M; synthetic images of 224 × 224",
    "resnet152": "ResNet-152, 60 M; synthetic images of 224 × 224",
    "densenet121": "DenseNet-121, 8.0 M; synthetic images of 224 × 224",
    "densenet169": "DenseNet-169, 14 M; synthetic images of 224 × 224",
    "densenet201": "DenseNet-201, 20 M; synthetic images of 224 × 224",
    "vit-b-16": "vision transformer B/16, 87 M; synthetic images of 224 × 224",
    "vit-l-16": "vision transformer L/16, 304 M; synthetic images of 224 × 224",
    "unet": "U-Net with batch norm, 31 M; synthetic images of 512 × 512 with a class a pixel",
    "gpt2": "GPT-2 small, 124 M; synthetic windows of 1,024 tokens",
    "gpt2-medium": "GPT-2 medium, 355 M; synthetic windows of 1,024 tokens",
    "gpt2-large": "GPT-2 large, 774 M; synthetic windows of 1,024 tokens",
    "gpt2-xl": "GPT-2 XL, 1,558 M; synthetic windows of 1,024 tokens",
    "lstm": "two LSTM layers of 1,024 over 10,000 words, 37 M; synthetic windows of 64 words",
    "big-lstm": "BigLSTM with a whole softmax over 793,471 words, 1,777 M; synthetic windows of 20 words",
    "gnmt": "GNMT, 8 + 8 LSTM layers of 1,024 with attention, 277 M; synthetic sentences of 50 pieces",
}
