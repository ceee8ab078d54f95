"""The choices a model leaves open, as types; importable without torch."""

from __future__ import annotations

from enum import Enum


class Activation(Enum):
    """What a hidden unit does with its input."""

    RELU = "relu"
    TANH = "tanh"
    """Bounded, which clipped training often likes better (Papernot et al. 2021, arXiv 2007.14191)."""


class CnnArchitecture(Enum):
    """Convolutional nets of two convolutions and two fully connected layers."""

    FEDAVG = "fedavg"
    """McMahan et al. 2017 (arXiv 1602.05629), Section 3: 5x5 convolutions of 32 and 64 channels, each with 2x2
    pooling, then 512 hidden units; 1,663,370 parameters on 28 x 28 grey images."""
    UNPADDED = "fedavg-unpadded"
    """The same without padding, 582,026 parameters: what FedFDP's public code builds."""
    STRIDED = "strided"
    """Rodriguez-Galvez et al. 2021 (FPFL): 5x5 convolutions of 32 and 64 channels with stride 2, then 100 units."""
    COMPACT = "compact"
    """26,010 parameters on 28 x 28 grey images: the net that the Opacus project's own MNIST example trains."""
