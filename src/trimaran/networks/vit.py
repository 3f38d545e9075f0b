"""The vision transformer: an image as a row of patches.

Source:
    Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021. Sizes as in torchvision's `vit_b_16`: 86,567,656
    parameters for images of 224 × 224.
"""

from dataclasses import dataclass

import torch
from torch import nn

_DEVIATION = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class VitSize:
    """How large a vision transformer is.

    Attributes:
        image: height and width of the images [pixels]; divides by the patch
        patch: height and width of a patch [pixels]
        width: size of a patch's state
        heads: heads of each attention
        blocks: number of blocks
        dense: width of the dense layer inside a block
    """

    image: int = 224
    patch: int = 16
    width: int = 768
    heads: int = 12
    blocks: int = 12
    dense: int = 3072


VIT_B_16 = VitSize()
VIT_L_16 = VitSize(width=1024, heads=16, blocks=24, dense=4096)
VIT_SIZES: dict[str, VitSize] = {
    "t-16": VitSize(width=192, heads=3, dense=768),
    "s-16": VitSize(width=384, heads=6, dense=1536),
    "b-16": VIT_B_16,
    "b-32": VitSize(patch=32),
    "l-16": VIT_L_16,
    "l-32": VitSize(patch=32, width=1024, heads=16, blocks=24, dense=4096),
}
"""By the letter of the width and the patch [pixels]; t and s are those of Touvron et al., ICML 2021 (DeiT)."""


class EncoderBlock(nn.Module):
    """Attention of every patch to every patch, then two dense layers; each is added to what came in.

    Args:
        size: of the network
        dropout: probability
    """

    def __init__(self, size: VitSize, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(size.width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(size.width, size.heads, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(size.width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, size.dense),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(size.dense, size.width),
            nn.Dropout(dropout),
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [batch, patches, width] to the same shape."""
        seen = self.ln_1(states)
        mixed, _ = self.self_attention(seen, seen, seen, need_weights=False)
        states = states + self.dropout(mixed)
        result: torch.Tensor = states + self.mlp(self.ln_2(states))
        return result


class VisionTransformer(nn.Module):
    """Patches and a class token through blocks; the scores are read from the class token.

    Args:
        size: `VIT_B_16`, `VIT_L_16` or a smaller one
        classes: number of classes
        channels: channels of the image
        dropout: probability

    Example:
        >>> size = VitSize(image=32, patch=8, width=32, heads=4, blocks=2, dense=64)
        >>> VisionTransformer(size, classes=10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, size: VitSize = VIT_B_16, *, classes: int = 1000, channels: int = 3, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(channels, size.width, size.patch, stride=size.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size.width))
        self.pos_embedding = nn.Parameter(torch.empty(1, (size.image // size.patch) ** 2 + 1, size.width))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderBlock(size, dropout) for _ in range(size.blocks))
        self.ln = nn.LayerNorm(size.width, eps=1e-6)
        self.head = nn.Linear(size.width, classes)
        nn.init.normal_(self.pos_embedding, std=_DEVIATION)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores.

        Args:
            images: [batch, channels, size.image, size.image]

        Returns:
            Scores [batch, classes].
        """
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)
        states = torch.cat([self.class_token.expand(images.shape[0], -1, -1), patches], dim=1)
        states = self.dropout(states + self.pos_embedding)
        for layer in self.layers:
            states = layer(states)
        scores: torch.Tensor = self.head(self.ln(states)[:, 0])
        return scores
