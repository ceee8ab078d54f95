"""The Controller: the coordinator over NVFlare. It sees published values and holds no record, ledger or noise."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from calibrate.errors import Refused
from privfair.training import train_over_engine

_LOOK_SECONDS = 0.02


class Coordinate(Controller):  # type: ignore[misc]  # NVFlare is not in this environment
    """Trains the signed plan that the job's configuration names; `settings` are those of `train_over_engine`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(task_check_period=_LOOK_SECONDS)
        self.settings = dict(settings)

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to put away."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that comes after its task was given up; its question is asked again, with the same bytes."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The whole run; a refusal ends the job with its message in the server's log."""
        try:
            self.train(self.settings, abort_signal, fl_ctx)
        except Refused as refused:
            self.system_panic(str(refused), fl_ctx)

    def train(self, settings: Mapping[str, Any], abort_signal: Signal, fl_ctx: FLContext) -> None:
        """One run over the clients of this job."""
        deadline = float(settings["deadline"])

        def exchange(messages: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
            yield from self._exchange(messages, deadline, abort_signal, fl_ctx)

        def present() -> list[str]:
            return [client.name for client in fl_ctx.get_engine().get_clients()]

        train_over_engine("nvflare", exchange, present, settings)

    def _exchange(
        self, messages: Mapping[str, bytes], deadline: float, abort_signal: Signal, fl_ctx: FLContext
    ) -> Iterator[tuple[str, bytes]]:
        """One task per client, all at once; clients whose guard is away, or that are too late, are left out."""
        found: list[tuple[str, bytes]] = []

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result = client_task.result
            if isinstance(result, Shareable) and result.get_return_code() == ReturnCode.OK and "frame" in result:
                found.append((client_task.client.name, bytes(result["frame"])))
            client_task.result = None

        tasks = []
        for name, frame in messages.items():
            data = Shareable()
            data["frame"] = frame
            task = Task("frame", data, timeout=int(deadline), result_received_cb=received)
            self.broadcast(task, fl_ctx, targets=[name], min_responses=1)
            tasks.append(task)
        while any(task.completion_status is None for task in tasks):
            if abort_signal.triggered:
                raise Refused("the job was stopped; go on with the same job and resume")
            time.sleep(_LOOK_SECONDS)
        yield from found
