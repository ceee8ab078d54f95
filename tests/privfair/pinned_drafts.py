"""Twenty plans whose signed manifests are pinned byte for byte in tests/calibrate/pinned_manifests.

    python -m tests.privfair.pinned_drafts

writes those that are missing. A pinned file is never written again: whatever a draft says later, these twenty must
still verify and show.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from securesystemslib.signer import CryptoSigner

from calibrate.accountants import registry
from calibrate.budget import calibrate_plan
from calibrate.manifest import draft as drafting
from calibrate.manifest.document import DataBinding, DataIdentity, Issuer, LedgerBinding, OwnCode
from calibrate.manifest.draft import BudgetSubject, draft_document
from calibrate.manifest.issue import BudgetDraft, add_signature, issue
from calibrate.manifest.keys import Role, SigningKey, public_key_from_pem
from calibrate.manifest.strict_json import digest
from calibrate.manifest.trust import TrustedKey, TrustFile
from calibrate.plans import plan_from_mapping
from privfair.api.draft import Promise, Unprotected, draft
from privfair.plan.plan import Plan
from tests.privfair.small_runs import FEDSGD, FPFL, GAUSSIAN, steffle_plan, write_silos

PINNED = Path(__file__).parents[1] / "calibrate" / "pinned_manifests"
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
VERSIONS = {"privfair": "0.1.0", "dp-accounting": "0.6.0"}
"""What was installed when the files were pinned; a release that computes the same numbers need not pin again."""


def _key(number: int) -> SigningKey:
    private = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    public = public_key_from_pem(pem, "a fixed key")
    return SigningKey(public, CryptoSigner(private, public.verifier))


OFFICER, OWNER = _key(1), _key(2)

_FILES = '[data]\nfiles = ["north.csv", "south.csv", "west.csv"]\nschema = "schema.toml"\n'
_SITES = '[data]\nschema = "schema.toml"\n[data.silos]\nnorth = 150\nsouth = 180\nwest = 160\n'
_IDENTITY = '[data.identity]\nname = "patients"\ncustodian = "North Hospital"\nversion = "2026"\n'
_SEARCH = '[search]\ntries = 4\nscore = "auc"\nsettings = [{ learning-rate = 0.1 }, { learning-rate = 1.0 }]\n'
_ALLOCATED = 'sampling = "random-allocation"\nbatches = 8\n'
_GUARDS = tuple(
    LedgerBinding(silo=name, ledger=f"{number:02}" * 32) for number, name in enumerate(("north", "south", "west"), 1)
)


def _plan(algorithm: str, privacy: str, rest: str = "", epsilon: float = 4.0, delta: float = 1e-5) -> str:
    return f'algorithm = "{algorithm}"\n[target]\nepsilon = {epsilon}\ndelta = {delta}\n[privacy]\n{privacy}{rest}'


_STEFFLE = "silo-size = 7500\nbatch-size = 256\nrounds = 60\nminority-fraction = 0.4\nlipschitz = 1.0\nw-radius = 1.0\n"
_FEDFDP = "sampling-rate = 0.2\nrounds = 6\nclip = 1.0\nloss-clip = 2.0\nloss-noise-ratio = 2.5\n"
_MMD = "group-size = 100\nsamples-per-group = 10\nrounds = 3\n"
_MMD_UPDATES = "users = 3\ncohort = 2\nupdate-clip = 0.5\nhistogram-noise-ratio = 1.0\n"

PLANS: dict[str, tuple[str, Issuer]] = {
    "steffle": (steffle_plan(24), Issuer(why="To lend fairly.", ledgers=(LedgerBinding(ledger="ab" * 32),))),
    "steffle-histogram-three-groups": (
        _plan(
            "steffle",
            _STEFFLE.replace("0.4", "0.3") + 'groups = 3\nhistogram-noise-ratio = 2.0\nsampling = "poisson"\n',
        ),
        Issuer(silos=(("north", 7500), ("south", 9000))),
    ),
    "steffle-research-noise": (steffle_plan(8, "retention = 4"), Issuer(research_noise=True)),
    "steffle-as-printed": (_plan("steffle", _STEFFLE), Issuer()),
    "steffle-guards": (
        steffle_plan(12).replace(_FILES, _SITES.replace("north = 150", "north = 120") + _IDENTITY),
        Issuer(ledgers=_GUARDS),
    ),
    "fedfdp": (_plan("fedfdp", _FEDFDP, f"{_FILES}at-least = 100\n[training]\nlearning-rate = 1e-9\n"), Issuer()),
    "fedfdp-normalised": (
        _plan("fedfdp", f"{_FEDFDP}normalisation-noise-ratio = 3.0\n"),
        Issuer(silos=(("one", 5000),)),
    ),
    "fpfl": (FPFL, Issuer(lifetime=timedelta(days=7))),
    "fpfl-poisson": (
        _plan("fpfl", 'users = 900\ncohort = 90\nrounds = 5\nclip = 1.0\nsampling = "poisson"\n'),
        Issuer(),
    ),
    "mmd-gaussian": (_plan("mmd-fedavg", _MMD + _MMD_UPDATES, f"{_FILES}[training]\nkernel-width = 8.0\n"), Issuer()),
    "mmd-laplace": (_plan("mmd-fedavg", f'{_MMD}mechanism = "laplace"\n'), Issuer()),
    "gaussian": (GAUSSIAN.format(rate=0.1, rounds=9, more=""), Issuer(ledgers=_GUARDS)),
    "gaussian-search": (GAUSSIAN.format(rate=0.1, rounds=9, more="") + _SEARCH, Issuer()),
    "gaussian-banded": (
        _plan("gaussian", 'rounds = 24\nclip = 1.0\nsampling = "cyclic"\nbatches = 6\nnoise = "banded"\n'),
        Issuer(silos=(("one", 600),)),
    ),
    "gaussian-no-privacy": (GAUSSIAN.format(rate=0.1, rounds=9, more=""), Issuer(why="A baseline.")),
    "pay-once": (_plan("pay-once", "rounds = 21\n", f"{_FILES}[training]\nfairness = 5.0\n"), Issuer()),
    "fair-plugin": (
        _plan("fair-plugin", "rounds = 4\n", f"{_FILES}at-least = 100\n[training]\ntarget-gap = 0.05\n"),
        Issuer(),
    ),
    "fair-plugin-users": (
        _plan("fair-plugin", 'protect = "user"\nrounds = 4\ncount-clip = 2.0\n'),
        Issuer(silos=(("one", 400),)),
    ),
    "own-loop": (
        _plan(
            "own-loop",
            f'units = 800\nrounds = 16\n{_ALLOCATED}names = ["gradient", "loss"]\nbounds = [1, 2]\nnoise = [1, 3]\n',
        ),
        Issuer(not_protected=("The names of the hospitals.",)),
    ),
    "fedsgd-no-privacy": (FEDSGD.format(rounds=5, more=""), Issuer()),
}


_PROMISES: dict[str, Promise] = {"as-printed": "as-printed", "no-privacy": Unprotected("to compare with")}
"""By the last two words of a plan's name; the others are calibrated."""


def _draft(name: str, file: Plan, issuer: Issuer) -> BudgetDraft:
    if name == "own-loop":
        return _draft_own_loop(file, issuer)
    return draft(file, issuer, _PROMISES.get("-".join(name.split("-")[-2:]), "calibrated"))


def _draft_own_loop(file: Plan, issuer: Issuer) -> BudgetDraft:
    """What `pf.budget` does: the caller says what a [training] section would."""
    subject = BudgetSubject(
        data=DataBinding.of(digest(None), (("data", 800),)),
        dataset=DataIdentity(name="patients", custodian="North Hospital", version="2026"),
        code=(OwnCode(name="loop.py", sha256="cd" * 32),),
        shapes={"gradient": (3, 4), "loss": (1,)},
        config_digest=file.digest,
    )
    budget = calibrate_plan(plan_from_mapping(file.algorithm, file.privacy), file.target(), subject.numbers)
    return draft_document(budget, subject, issuer)


class _Clock(datetime):
    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return NOW


def signed(name: str, folder: Path) -> bytes:
    """The manifest of a plan of `PLANS`, by fixed keys, at a fixed time, with a fixed nonce; data are written here."""
    text, issuer = PLANS[name]
    write_silos(folder)
    (folder / "plan.toml").write_text(text, encoding="utf-8")
    nonce = name.encode().hex().ljust(64, "0")[:64]
    with (
        mock.patch.object(drafting, "datetime", _Clock),
        mock.patch.object(drafting, "fresh_nonce", return_value=nonce),
        mock.patch.object(drafting, "version", VERSIONS.get),
        mock.patch.object(registry, "_version", VERSIONS.get),
    ):
        drafted = _draft(name, Plan.read(folder / "plan.toml"), issuer)
    manifest = issue(drafted, OFFICER)
    return add_signature(manifest, OWNER) if issuer.ledgers == _GUARDS else manifest


def main() -> None:
    """Pin what is not pinned yet."""
    PINNED.mkdir(exist_ok=True)
    trusted = TrustedKey.of(OFFICER.public, Role.PRIVACY_OFFICER, NOW - timedelta(days=1))
    (PINNED / "trust.json").write_bytes(TrustFile(keys=(trusted,)).to_bytes())
    for name in PLANS:
        path = PINNED / f"{name}.json"
        if not path.exists():
            with tempfile.TemporaryDirectory() as folder:
                path.write_bytes(signed(name, Path(folder)))
            print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
