"""Neighbouring data sets made from the run's own: a unit left out, given other records, or another attribute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from audit.probes.scene import rows_of, units_of
from privfair.algorithms.algorithm import SiloTensors


@dataclass(frozen=True, eq=False)
class Record:
    """What one record could be."""

    x: Tensor
    y: int
    s: int


def record_at(silo: SiloTensors, row: int) -> Record:
    return Record(silo.x[row].clone(), int(silo.y[row]), int(silo.s[row]))


def with_record(silo: SiloTensors, unit: int, record: Record) -> SiloTensors:
    """The silo in which every record of the unit is this one."""
    rows = rows_of(silo, unit)
    x, y, s = silo.x.clone(), silo.y.clone(), silo.s.clone()
    x[rows], y[rows], s[rows] = record.x.to(x.dtype), record.y, record.s
    return replace(silo, x=x, y=y, s=s)


def with_attribute(silo: SiloTensors, row: int, group: int) -> SiloTensors:
    s = silo.s.clone()
    s[row] = group
    return replace(silo, s=s)


def without(silo: SiloTensors, unit: int, batch: Tensor) -> tuple[SiloTensors, Tensor]:
    """The silo that never had the unit, and the same batch without it.

    Users keep their numbers; records after the one left out move up by one row.
    """
    keep = torch.ones(len(silo), dtype=torch.bool)
    keep[rows_of(silo, unit)] = False
    owners = None if silo.unit_of_row is None else silo.unit_of_row[keep]
    clients = None if silo.client_of_row is None else silo.client_of_row[keep]
    smaller = replace(
        silo,
        x=silo.x[keep],
        y=silo.y[keep],
        s=silo.s[keep],
        unit_of_row=owners,
        client_of_row=clients,
    )
    rest = batch[batch != unit]
    if silo.unit_of_row is None:
        rest = rest - (rest > unit).to(rest.dtype)
    return smaller, rest


def crowd_of(silo: SiloTensors, unit: int, batch: Tensor, record: Record) -> SiloTensors:
    """The silo in which all other units of the batch hold copies of one record: averages move most there."""
    x, y, s = silo.x.clone(), silo.y.clone(), silo.s.clone()
    for other in batch.tolist():
        if other != unit and other < units_of(silo):
            rows = rows_of(silo, other)
            x[rows], y[rows], s[rows] = record.x.to(x.dtype), record.y, record.s
    return replace(silo, x=x, y=y, s=s)
