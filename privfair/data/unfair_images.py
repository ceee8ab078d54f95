"""FPFL's "unfair" images: two pens on white paper, and few writers with chalk on a blackboard.

Rodriguez-Galvez et al. 2021 make groups that a classifier serves unequally out of digits without any. The first 45% of
the writers use a black pen, the next 45% a blue one, the rest chalk: white strokes on black, blurred with noise
(their Equation 19) and turned by 90 degrees.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput
from privfair.batches.randomness import stream
from privfair.data.dataset import Dataset
from privfair.data.facts import digest
from privfair.data.stability import WRITERS_BY_POSITION, WRITERS_BY_RECORD, RecordHash
from privfair.plan.data_choices import UnfairImages

GROUPS = ("black-pen", "blue-pen", "chalk")
WRITER = "writer"
"""The side column that says who wrote a record; every writer keeps to one group."""
_NOISE_BLUR, _CHALK_BLUR = 2.0, 1.0
_BLUE = 2
"""Of red, green, blue."""

Images = NDArray[np.float32]


def unfair_images(data: Dataset, how: UnfairImages, seed: int, by: RecordHash | None = None) -> Dataset:
    """Grey images of light strokes on a dark ground as colour images of three groups; pixels stay in [0, 1].

    Equation 19 can leave [0, 1]; here its result is cut back. All randomness depends on `seed` and a record's
    position; with `by` it depends on the seed and the record alone.
    """
    shape = data.feature_shape
    if len(shape) != 3 or shape[0] != 1 or shape[1] != shape[2]:
        raise InvalidInput(
            "[data.unfair]",
            "(a table)",
            f"needs square grey images, and a record here has the shape {shape}",
            "use fashion-mnist or mnist",
        )
    generator = stream(seed, "unfair images")
    writer = generator.integers(how.writers, size=len(data))
    keys = None
    if by is not None:
        writer, keys = by.one_of(data, seed, "writer", how.writers), by.words(data, seed, "chalk")
    group = np.repeat(np.arange(3), how.of_each_group)[writer]
    return replace(
        data,
        features=_draw_images(data.features[:, 0].astype(np.float32), group, generator, keys),
        group=group.astype(np.int64),
        group_names=GROUPS,
        schema_digest=digest({"unfair": data.schema_digest, "groups": [*GROUPS]}),
        side_columns={**data.side_columns, WRITER: writer},
        steps=(*data.steps, WRITERS_BY_POSITION if by is None else WRITERS_BY_RECORD),
    )


def _draw_images(
    strokes: Images, group: Integers, generator: np.random.Generator, keys: NDArray[np.uint64] | None
) -> Images:
    """Colour channels first: (records, 3, height, width)."""
    paper = np.repeat(1 - strokes[:, np.newaxis], 3, axis=1)
    blue, chalk = group == GROUPS.index("blue-pen"), group == GROUPS.index("chalk")
    paper[blue, _BLUE] = 1.0
    dust = generator if keys is None else [np.random.Generator(np.random.PCG64(int(key))) for key in keys[chalk]]
    paper[chalk] = _on_blackboard(strokes[chalk], dust)[:, np.newaxis]
    return paper


def _on_blackboard(strokes: Images, generator: np.random.Generator | list[np.random.Generator]) -> Images:
    """(x + noise * kappa_2) * kappa_1 with Gaussian kernels of deviations 2 and 1, turned by 90 degrees."""
    from scipy.ndimage import gaussian_filter  # here, so that reading a plan stays quick

    if isinstance(generator, list):  # one for each image
        drawn = [one.standard_normal(strokes.shape[1:]) for one in generator]
        noise = np.array(drawn, dtype=np.float32).reshape(strokes.shape)
    else:
        noise = generator.standard_normal(strokes.shape).astype(np.float32)
    dust = gaussian_filter(noise, (0, _NOISE_BLUR, _NOISE_BLUR))
    blurred = gaussian_filter(strokes + dust, (0, _CHALK_BLUR, _CHALK_BLUR))
    return np.rot90(np.clip(blurred, 0.0, 1.0), axes=(1, 2)).astype(np.float32)
