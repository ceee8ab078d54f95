"""Records at which clipping, averaging and weighing go wrong, if they do: far out, opposite, or quiet but steep."""

from __future__ import annotations

import torch
from torch import Tensor

from audit.probes.altered import Record, record_at
from audit.probes.scene import Moment, Scene
from privfair.algorithms.algorithm import SiloTensors
from privfair.models.model import mean_over

FAR = 1000.0
_MOST_CLASSES = 3
_LOOKED_AT = 256
_SURE = (0.0, 1.0, 4.0)
"""Multiples of a well-classified record: from in doubt to ever surer, and so to an ever smaller loss."""


def extremes(scene: Scene, moment: Moment, silo: SiloTensors, facing: Record) -> tuple[Record, ...]:
    """Far along and against `facing`, with every label; and far where the model does not look."""
    records = [
        Record(sign * FAR * facing.x, label, facing.s)
        for sign in (1.0, -1.0)
        for label in range(min(_MOST_CLASSES, scene.model.classes))
    ]
    theta = scene.algorithm.theta(moment.state)
    return (*records, *_quiet_but_steep(scene, theta, silo))


def _quiet_but_steep(scene: Scene, theta: Tensor, silo: SiloTensors) -> tuple[Record, ...]:
    """Records of small loss whose gradient is huge: a step to where no score changes leaves the loss and grows x.

    A weight that falls with the loss, and may become negative, escapes its clip at just such records.
    """
    x, y = silo.x[:_LOOKED_AT], silo.y[:_LOOKED_AT]
    if len(y) == 0:
        return ()
    losses = scene.model.weighted_gradient(theta, x, y, mean_over(len(y))).losses
    best = record_at(silo, int(losses.argmin()))
    found = []
    for times in _SURE:
        at = times * best.x
        found.append(Record(at + FAR * _unseen_direction(scene, theta, at), best.y, best.s))
    return tuple(found)


def _unseen_direction(scene: Scene, theta: Tensor, at: Tensor) -> Tensor:
    """A unit vector along which, to first order, no score of the record changes; zero if there is none."""
    flat = at.detach().reshape(-1).to(torch.float64)

    def scores(point: Tensor) -> Tensor:
        return scene.model.logits(theta, point.reshape(at.shape).to(at.dtype)[None])[0].to(torch.float64)

    slopes = torch.autograd.functional.jacobian(scores, flat)
    start = torch.ones_like(flat)
    start[::2] = -1.0
    rest = start - torch.linalg.pinv(slopes) @ (slopes @ start)
    length = torch.linalg.vector_norm(rest)
    direction = rest / length if float(length) > 1e-9 else torch.zeros_like(rest)
    return direction.reshape(at.shape).to(at.dtype)
