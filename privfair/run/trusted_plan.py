"""The plan of a run folder, which may come from anybody: nothing of it runs before it was authenticated and trusted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calibrate.errors import InvalidInput, PrivfairError, Refused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.strict_json import Step
from calibrate.manifest.trust import UNTRUSTED, FolderTrust
from calibrate.manifest.verify import AuthenticManifest, authenticate, read_unverified, require_signed_code
from privfair.plan.data import FileSource
from privfair.plan.training import TrainingPlan, read_training_plan
from privfair.run.folder import RunFolder


@dataclass(frozen=True, eq=False)
class FolderPlan:
    """The plan and the manifest of a run folder; the manifest is authentic where trusted signers were named."""

    plan: TrainingPlan
    envelope: bytes
    document: BudgetDocument
    manifest_digest: str
    authentic: AuthenticManifest | None


def read_folder_plan(
    folder: RunFolder, trusted: FolderTrust = UNTRUSTED, plan_path: Path | None = None, model_only: bool = False
) -> FolderPlan:
    """Read, in this order, the manifest (authenticated where signers are named) and the plan.

    A plan with code of its own is refused unless its digest and the digests of its files are the signed ones; and if
    the files lie in the run folder, unless the manifest is authentic and `trusted.code` was given. `plan_path` is the
    plan in its own place: then its code is the reader's own and not the folder's. With `model_only` the reader promises
    to build nothing but the model, so that a loss of the user's own does not count.
    """
    try:
        envelope = folder.manifest.read_bytes()
    except OSError as error:
        rule = f"cannot be read ({error.strerror})"
        raise InvalidInput("run folder", str(folder.manifest), rule, "name a whole run folder") from error
    # A run of the past stays readable after its budget expired: reading spends nothing, and `bind` refuses it.
    authentic = None if trusted.signers is None else authenticate(envelope, trusted.signers, for_reading=True)
    claimed = authentic or read_unverified(envelope)
    plan = read_training_plan(folder.plan if plan_path is None else plan_path)
    code, own = plan.code_digests(), plan.own_code()
    runs = [name for name in own if not model_only or (plan.model.code is not None and name == plan.model.code.name)]
    if runs and plan_path is None:
        _require_trusted(folder, runs, trusted)
    if runs or len(code) > len(own):  # the packages of plug-ins are the reader's own, and must be the signed ones
        signed, given = claimed.document.config_digest, plan.file.digest
        if signed != given:
            raise Step.PLAN.refuse(f"the budget is for the plan {signed[:12]}, not for {given[:12]}, which brings code")
        require_signed_code(claimed.document, code)
    return FolderPlan(plan, envelope, claimed.document, claimed.digest, authentic)


def original_plan(folder: RunFolder) -> Path | None:
    """Where the run says that its plan lay, if the same plan still lies there; None if it need not be known.

    A plan that names data files relative to itself is read from its own place. The folder may come from anybody, so
    a plan that brings code is never looked for: then the reader has to name it.
    """
    try:
        plan = read_training_plan(folder.plan)
        source = plan.data.source
        if not isinstance(source, FileSource) or plan.own_code():
            return None
        if all(file.is_file() for file in (source.schema, *source.files)):
            return None
        origin = Path(str(folder.read_json(folder.origin)["plan"]))
        return origin if origin.is_file() and origin.read_bytes() == folder.plan.read_bytes() else None
    except (PrivfairError, KeyError, OSError, ValueError):
        return None


def _require_trusted(folder: RunFolder, names: list[str], trusted: FolderTrust) -> None:
    brings = f"{folder.path} brings code of its own ({', '.join(names)}), which would run"
    if not trusted.code:
        raise Refused(f"{brings}; read it, and add --trust-code with --trust if you know who wrote it")
    if trusted.signers is None:
        raise Refused(f"{brings}, and nobody's signature was checked; name the trust file with --trust")
