"""A loss law on the lattice step * Z, dominating (pessimistic) or dominated (optimistic).

The profile of a law is H(a) = E_P (1 - a exp(-L))_+ (equation 1), convex and decreasing in a >= 0. A measure on lattice
points has a profile that is linear between the points exp(lattice). If one profile lies below another for
every a, so do their compositions, whatever they are composed with (docs/theorems/certified-accountant.md,
"Profiles compose"). Hence

* pessimistic: the chords of H between lattice points lie above H ("connect the dots", equation 8);
* optimistic: the chords, lowered at each lattice point until no segment exceeds H, lie below it (equation 9).

All rounding is directed: a computed mass is moved by its error bound to the side that keeps the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from calibrate.accountants.losses import UNIT_ROUNDOFF, Atom, Nodes, PrivacyLossLaw, at_ends, connected_dots, edge_error
from calibrate.arrays import Floats, Integers
from calibrate.errors import NotCertified

_TAIL_SHARE = 0.35
"""How much discretisation error the coarse buckets may add, relative to the finest ones everywhere."""
_LONGEST_TANGENTS = 4096
"""The tangents at an end of the support are given up after this many buckets; that costs tightness only."""
_PORTION = 64
"""Usually a few buckets are enough, so they are not all turned into lists at once."""
_OFFSET_LOOKS = 4
"""How often the atom of merged losses is moved to where the others begin."""
_LARGEST_EDGE = 700.0
_NODE_ROUNDINGS = 64.0
"""A lattice mass is right to this many roundoffs of what it is a difference quotient of."""


@dataclass(frozen=True)
class LatticeLaw:
    """P-masses at `offset + index * step`, ascending, and the mass at infinity."""

    index: Integers
    mass: Floats
    infinite: float
    offset: float = 0.0


def lattice_edges(nodes: Nodes, span: tuple[float, float], step: float, tilt: float, narrowest: float) -> Integers:
    """Bucket edges over `span`, in units of `step`: `narrowest` where the tilted law is dense, wider elsewhere.

    The error of a bucket grows with mass * width^2, so for a given number of buckets the total is smallest
    when width ~ density^(-1/3). Widths are about powers of two so that neighbours rarely differ.
    """
    last = math.ceil(span[1] / step)
    first = min(math.floor(span[0] / step), last)
    inside = nodes.losses <= span[1]
    if last - first < 2 or np.count_nonzero(inside) < 3:
        return np.arange(first - 1, last + 2, dtype=np.int64)
    kept = Nodes(nodes.log_weights[inside], nodes.losses[inside])
    position, level = _width_levels(kept, step, tilt, max(step, narrowest))
    starts = np.flatnonzero(np.diff(level, prepend=level[0] - 1))
    bounds = [first, *(min(max(first, int(position[k] // step)), last) for k in starts[1:]), last]
    pieces = [
        _evenly(begin, end, int(level[k]))
        for begin, end, k in zip(bounds[:-1], bounds[1:], starts, strict=True)
        if end > begin
    ]
    return np.concatenate([*pieces, np.array([last, last + 1], dtype=np.int64)])


def _evenly(begin: int, end: int, level: int) -> Integers:
    """Edges from `begin` up to but without `end`, at least eight steps of about 2**level if there is room."""
    length = end - begin
    count = max(length >> level, min(length, 8))
    return begin + length * np.arange(count, dtype=np.int64) // count


def _width_levels(nodes: Nodes, step: float, tilt: float, narrowest: float) -> tuple[Floats, Integers]:
    """For each node its loss and the binary logarithm of the bucket width around it, in steps."""
    exponent = nodes.log_weights + tilt * nodes.losses
    weight = np.exp(exponent - exponent.max())
    spread = np.maximum(np.gradient(nodes.losses), 1e-9 * step)
    density = weight / weight.sum() / spread
    cube_root = np.cbrt(np.maximum(density, 1e-300))
    scale = narrowest * math.sqrt(_TAIL_SHARE / float(cube_root @ spread))
    widest = max(step, 0.5 / (1 + tilt))
    width = np.clip(scale / cube_root, min(narrowest, widest), widest)
    level = np.floor(np.log2(width / step)).astype(np.int64)
    return nodes.losses, np.minimum(level, np.minimum(np.roll(level, 1), np.roll(level, -1)))


def pessimistic(law: PrivacyLossLaw, edges: Integers, step: float) -> LatticeLaw:
    """The law whose profile connects the dots of H at the edges; everything above the last edge is infinite."""
    loss: Floats = edges.astype(np.float64) * step
    if loss[-1] > _LARGEST_EDGE:
        raise NotCertified(
            "this number of rounds needs a lattice too coarse for single losses; use more noise, or fewer rounds"
        )
    buckets = law.buckets(loss)
    nodes = connected_dots(buckets, loss)
    index, masses = _with_atoms(edges, nodes, [item for atom in law.atoms for item in _split_atom(atom, step)])
    # Losses above the last edge become infinite: H only rises.
    return LatticeLaw(index, masses, buckets.above + law.unbounded_mass)


def optimistic(law: PrivacyLossLaw, edges: Integers, step: float, offset: float = 0.0) -> LatticeLaw:
    """A law whose profile stays below H: what lies outside the edges is dropped."""
    loss: Floats = edges.astype(np.float64) * step + offset
    halves = np.empty(2 * len(edges) - 1, dtype=np.float64)
    halves[::2] = loss
    halves[1::2] = (loss[1:] + loss[:-1]) / 2
    buckets = law.buckets(halves)
    # Less P-mass and more Q-mass: H (equation 1) only falls.
    p = np.maximum(buckets.p - buckets.p_error, 0.0).reshape(-1, 2)
    q = (buckets.q + buckets.q_error).reshape(-1, 2) * np.exp(loss[:-1])[:, None]
    q += edge_error(loss)[:, None] * p
    p = np.where(p > q, p, 0.0)  # a half-bucket whose ratio is lost in rounding is dropped
    q = np.where(p > 0, q, 0.0)
    nodes = _lower_chords(p, q, np.diff(loss))
    index, masses = _with_atoms(edges, nodes, [item for atom in law.atoms for item in _lower_atom(atom, step)])
    return LatticeLaw(index, masses, 0.0, offset)


def optimistic_with_merged_bulk(
    law: PrivacyLossLaw, nodes: Nodes, span: tuple[float, float], step: float, tilt: float, narrowest: float
) -> LatticeLaw | None:
    """The same for a law of rare large losses: all small ones are merged into one atom, which the lattice starts from.

    Where a unit rarely takes part, nearly all mass has a loss far smaller than the step, and moving it to a
    lattice point in every round costs more than everything else. Merging outcomes is post-processing, so the profile
    falls; the atom's loss is log(p/q), rounded down. None for laws that have atoms, or without large losses.
    """
    threshold, first = 2 * step, 0
    if law.atoms or not span[0] < threshold < span[1] - 4 * step:
        return None
    merged = _merged_below(law, span[0], threshold)
    for _ in range(_OFFSET_LOOKS):  # the losses that are kept begin where the merged ones end, which moves the atom
        if merged is None:
            return None
        offset = merged[1]
        first = first or math.ceil((threshold - offset) / step)
        threshold = first * step + offset
        merged = _merged_below(law, span[0], threshold)
    if merged is None or merged[1] < offset:
        return None
    shifted = Nodes(nodes.log_weights, nodes.losses - offset)
    edges = lattice_edges(shifted, (first * step, span[1] - offset), step, tilt, narrowest)
    edges = np.append(first, edges[edges > first])
    if len(edges) < 3:
        return None
    large = optimistic(law, edges, step, offset)
    return LatticeLaw(np.append(0, large.index), np.append(merged[0], large.mass), 0.0, offset)


def _merged_below(law: PrivacyLossLaw, low: float, threshold: float) -> tuple[float, float] | None:
    """Mass and loss, both rounded down, of the outcome that all losses from `low` to `threshold` are merged into."""
    bulk = law.buckets(np.array([low, threshold]))
    p, q = float(bulk.p[0] - bulk.p_error[0]), float(bulk.q[0] + bulk.q_error[0])
    if not p > 0:
        return None
    loss = math.log(p / q)
    # The merged outcome has loss log(p/q): post-processing, so H falls.
    return p, loss - 16 * UNIT_ROUNDOFF * (1 + abs(loss))


def _lower_chords(p: Floats, q: Floats, width: Floats) -> Floats:
    """Lattice masses of a convex piecewise linear minorant of the profile of the half-buckets (p, q).

    `q` is relative to the lower edge of its bucket, so a half-bucket (p, q) contributes (p - q (1 + t))_+ at
    the point t in [0, expm1(width)] of its bucket.
    """
    mass, excess = p.sum(axis=1), (p - q).sum(axis=1)
    share = np.clip(excess / -np.expm1(-width), 0.0, mass)
    # Equation 9: lowered at each edge until no chord exceeds H at a kink.
    drop = _drops(_gaps(p, q, np.expm1(width)), excess)
    nodes = at_ends(mass, share)
    # Lowering the function at an edge moves mass between that edge and its neighbours (a change of slopes).
    rise = np.diff(drop)
    nodes[:-1] -= rise / np.expm1(width)
    nodes[1:] += rise / -np.expm1(-width)
    nodes[0] += drop[0]
    quotient = np.append(mass / -np.expm1(-width), 0.0)
    quotient[1:] += quotient[:-1].copy()
    convex = _make_convex(nodes, width, _NODE_ROUNDINGS * UNIT_ROUNDOFF * quotient)
    return nodes if convex else _shared_down(mass, excess, width)


def _shared_down(mass: Floats, excess: Floats, width: Floats) -> Floats:
    """Lattice masses below the profile that always exist: buckets are split between their two edges (equation 19).

    An edge may take a share of the bucket below it as long as what the bucket above it leaves there makes up for it.
    """
    missing = np.maximum((mass - excess) * np.expm1(width) - excess, 0.0)
    missing += 8 * UNIT_ROUNDOFF * (excess + missing)
    above, below = np.append(excess, 0.0), np.append(0.0, missing)
    total = np.maximum(above + below, 1e-300)
    # l_i = max(w_i, w_(i+1)) of equation 19, as shares down and up, each moved to its safe side.
    down = np.where(above + below > 0, below / total, 1.0) * (1 + _NODE_ROUNDINGS * UNIT_ROUNDOFF)
    up = above / total * (1 - _NODE_ROUNDINGS * UNIT_ROUNDOFF)
    nodes = np.append(np.minimum(np.maximum(down[:-1], down[1:]), 1.0) * mass, 0.0)
    nodes[1:] += np.minimum(up[:-1], up[1:]) * mass
    return nodes


def _drops(gaps: _Gaps, excess: Floats) -> Floats:
    """How far to lower the chords at each edge, so that no segment exceeds the profile.

    Lowering both ends of a segment by its largest gap is enough, and is done in the bulk. At the ends of the
    support the profile bends too quickly for that: there each segment is the tangent to the profile from
    the end of the segment before it, which makes a convex function by itself.
    """
    largest = np.maximum(gaps.size[0], gaps.size[1])
    drop: Floats = np.maximum(np.append(largest, 0.0), np.append(0.0, largest))
    count = len(largest)
    reach = min(count, _LONGEST_TANGENTS)
    value, drop[0] = 0.0, 0.0
    for i, (size, fraction, following) in enumerate(_ends(gaps, largest, reach)):
        value = max(0.0, *((g - (1 - f) * value) / f for g, f in zip(size, fraction, strict=True)))
        drop[i + 1] = value
        if value >= following > 0:
            break
    value = float(excess[-1])
    drop[-2:] = value, 0.0
    for i in range(count - 2, max(0, count - reach), -1):
        if value >= largest[i] > 0:
            break
        value = max(0.0, *((g - f * value) / (1 - f) for g, f in zip(gaps.size[:, i], gaps.along[:, i], strict=True)))
        drop[i] = value
    for size, fraction in zip(gaps.size, gaps.along, strict=True):
        # Where the three parts meet, or by rounding, a segment may still be too high: lower its nearer end.
        missing = np.maximum(size - (1 - fraction) * drop[:-1] - fraction * drop[1:], 0.0) * (1 + 1e-9)
        missing[-1] = 0.0  # the last segment is 0 throughout
        left = fraction < 0.5
        drop[:-1] += np.where(left, missing / (1 - fraction), 0.0)
        drop[1:] += np.where(left, 0.0, missing / fraction)
    return drop


def _ends(gaps: _Gaps, largest: Floats, reach: int) -> Iterator[tuple[list[float], list[float], float]]:
    """Gaps and fractions of the first `reach` buckets and the largest gap of the bucket after each, in portions."""
    for start in range(0, reach, _PORTION):
        here, following = slice(start, min(start + _PORTION, reach)), slice(start + 1, start + _PORTION + 1)
        yield from zip(
            gaps.size[:, here].T.tolist(), gaps.along[:, here].T.tolist(), largest[following].tolist(), strict=False
        )


def _make_convex(nodes: Floats, width: Floats, rounding: Floats) -> bool:
    """Remove negative masses in place by passing to the lower convex envelope; False if that is impossible.

    A negative mass is a concave kink. Cutting it off by the chord of its neighbours lowers the function and
    hands its P- and Q-mass to them; left of everything there is only the value at a = 0 to hold on to. The last
    point has nothing above it: a negative mass there is handed down if it is mere rounding (which moves the
    profile by no more than roundoff times the mass nearby), and is the end of the attempt if not.
    """
    pending = np.flatnonzero(nodes < 0).tolist()
    if not pending:
        return True
    position = np.append(0.0, np.cumsum(width)).tolist()
    masses, end = nodes.tolist(), 1 + int(np.flatnonzero(nodes)[-1])
    below, above = list(range(-1, end - 1)), list(range(1, end + 1))  # the neighbours not yet cut off
    while pending:
        j = pending.pop()
        if masses[j] >= 0:
            continue
        a, b, negative = below[j], above[j], masses[j]
        if b == end and (a < 0 or -negative > rounding[j]):
            return False
        share = 0.0 if b == end else 1.0
        if b == end:
            masses[a] += negative
            above[a] = end
            pending.append(a)
        elif a >= 0:
            share = math.expm1(position[a] - position[j]) / math.expm1(position[a] - position[b])
            masses[a] += (1 - share) * negative
            above[a] = b
            pending.append(a)
        if b < end:
            masses[b] += share * negative
            below[b] = a
            pending.append(b)
        masses[j] = 0.0
    nodes[:] = masses
    return True


@dataclass(frozen=True)
class _Gaps:
    """Chord minus profile at the two kinks inside each bucket, and where along the bucket they are."""

    size: Floats
    along: Floats


def _gaps(p: Floats, q: Floats, reach: Floats) -> _Gaps:
    """Chord minus profile is linear between the kinks, where a half-bucket's contribution ends, and 0 at the ends."""
    excess = (p - q).T
    start = excess.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        kink = np.where(q.T > 0, excess / q.T, np.inf)
    along = np.clip(kink / reach, 1e-9, 1 - 1e-9)
    profile = np.maximum(excess[::-1] - along * reach * q.T[::-1], 0.0)
    moved = (along != kink / reach) & (kink < reach)  # pays for keeping the fractions away from 0 and 1
    size = np.maximum(start * (1 - along) - profile, 0.0) * (1 + 1e-12) + np.where(moved, 2e-9 * start, 0.0)
    return _Gaps(np.where(p.T > 0, size, 0.0), along)  # an empty half-bucket has no kink


def _with_atoms(edges: Integers, nodes: Floats, placed: list[tuple[int, float]]) -> tuple[Integers, Floats]:
    """The continuous part and the placed atoms on one ascending set of lattice points."""
    if not placed:
        return edges, nodes
    index = np.concatenate((edges, np.array([i for i, _ in placed], dtype=np.int64)))
    mass = np.concatenate((nodes, np.array([m for _, m in placed])))
    unique, inverse = np.unique(index, return_inverse=True)
    return unique, np.bincount(inverse, weights=mass, minlength=len(unique)).astype(np.float64)


def _split_atom(atom: Atom, step: float) -> list[tuple[int, float]]:
    """Connect the dots for one atom: onto its two neighbouring lattice points."""
    below = math.floor(atom.loss / step)
    share = min(1.0, max(0.0, math.expm1(below * step - atom.loss) / math.expm1(-step)))
    return [(below, atom.mass * (1 - share)), (below + 1, atom.mass * share)]


def _lower_atom(atom: Atom, step: float) -> list[tuple[int, float]]:
    """Down to the lattice, unless the atom is on it up to rounding (a change that the slack covers)."""
    nearest = round(atom.loss / step)
    on_lattice = abs(nearest * step - atom.loss) <= 16 * UNIT_ROUNDOFF * abs(atom.loss)
    return [(nearest if on_lattice else math.floor(atom.loss / step), atom.mass)]
