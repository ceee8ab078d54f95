"""The Executor: bytes from NVFlare to the guard's socket, and back. It holds no record, manifest, ledger or noise.

A client needs NVFlare alone: `write_job` copies this file and `guard_socket` into the job. Where the guard answers is
the site's own environment (`PRIVFAIR_GUARD_SOCKET=/run/privfair-north/guard.sock`), never the server's word; `{site}`
in it stands for the client's name, for several clients on one machine.
"""

from __future__ import annotations

import os

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from privfair.federation.guard_socket import carry


class GuardRelay(Executor):  # type: ignore[misc]  # NVFlare is not in this environment
    """Carries one frame per task; a guard that is away is an error without words."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """See `Executor.execute`."""
        try:
            path = os.environ["PRIVFAIR_GUARD_SOCKET"].replace("{site}", fl_ctx.get_identity_name())
            answer = carry(path, bytes(shareable["frame"]))
        except (OSError, KeyError):
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = Shareable()
        reply["frame"] = answer
        return reply
