"""What a membership attack is, and the attacks by name."""

from __future__ import annotations

from typing import Protocol

from audit.attacks.membership.lira import LiraOffline, LiraOnline
from audit.attacks.membership.loss_threshold import LossThreshold
from audit.attacks.membership.result import AttackName
from audit.attacks.membership.rmia import Rmia
from audit.attacks.membership.signals import Signals
from calibrate.arrays import Floats


class MembershipAttack(Protocol):
    """Turns signals into one score a record, larger for likelier members; never told who is one."""

    @property
    def name(self) -> AttackName: ...

    @property
    def least_models(self) -> int:
        """How many shadow models it needs."""
        ...

    def scores(self, signals: Signals) -> Floats: ...


ONLINE_ATTACKS: tuple[MembershipAttack, ...] = (LossThreshold(), Rmia(), LiraOnline())
"""With shadow models trained on random halves of the audited records."""
OFFLINE_ATTACKS: tuple[MembershipAttack, ...] = (LossThreshold(), Rmia(), LiraOffline())
"""With shadow models trained on other records only."""
WITHOUT_MODELS: tuple[MembershipAttack, ...] = (LossThreshold(),)
