"""How far a run folder of somebody else is trusted; loaded before anything of the folder is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrate.manifest.trust import TrustFile


@dataclass(frozen=True)
class FolderTrust:
    """How far a run folder is trusted: whose signatures count, and whether the code it brings may run."""

    signers: TrustFile | None = None
    code: bool = False


UNTRUSTED = FolderTrust()
