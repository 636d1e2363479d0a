# SPDX-License-Identifier: Apache-2.0
"""Addresses of streams into containers, each good for one use; whoever asked connects to the runtime itself."""

from collections.abc import Awaitable, Sequence

from agent.model.refused import Refused
from agent.model.runtime.error import DeadlineExceeded, RuntimeCallFailed, Unavailable
from agent.pods.ports import ExecProcesses, Streams
from agent.pods.run.commands import ContainerTarget, PodCommands
from agent.wire.cri import runtime_v1_pb2 as pb


class StreamUrls:
    def __init__(self, commands: PodCommands, streams: Streams, processes: ExecProcesses) -> None:
        self._commands = commands
        self._streams = streams
        self._processes = processes

    async def exec_url(self, target: ContainerTarget, command: Sequence[str], *, has_stdin: bool, is_tty: bool) -> str:
        request = pb.ExecRequest(
            container_id=self._commands.running_id(*target),
            cmd=command,
            stdin=has_stdin,
            tty=is_tty,
            stdout=True,
            stderr=not is_tty,
        )
        return await _answered(self._streams.exec_url(request))

    async def end_exec(self, target: ContainerTarget, command: Sequence[str], since_s: float) -> bool:
        """What was run since then and is no longer waited for. False: it is over already."""
        return await self._processes.end(self._commands.running_id(*target), command, since_s)

    async def attach_url(self, target: ContainerTarget, *, has_stdin: bool) -> tuple[str, bool]:
        """Where the streams of what runs already can be had, and whether it has a terminal."""
        container_id = self._commands.running_id(*target)
        run = self._commands.keeper(target[0], target[1]).run
        name = next(one.name for one in run.seen.instances if one.id == container_id)
        fields = run.container_of(name).fields
        if has_stdin and not fields.stdin:
            needed = "stdin: true in its manifest, or -i of `kepctl debug`"
            raise Refused("precondition", f"container {name} reads no input; that needs {needed}")
        request = pb.AttachRequest(
            container_id=container_id, stdin=has_stdin, tty=fields.tty, stdout=True, stderr=not fields.tty
        )
        return await _answered(self._streams.attach_url(request)), fields.tty

    async def port_forward_url(self, namespace: str, name: str, ports: Sequence[int]) -> str:
        run = self._commands.keeper(namespace, name).run
        active = run.seen.active
        if active is None or not active.is_ready:
            raise Refused("precondition", f"pod {run.pod.key} has no sandbox that is ready")
        return await _answered(
            self._streams.port_forward_url(pb.PortForwardRequest(pod_sandbox_id=active.id, port=ports))
        )


async def _answered(url: Awaitable[str]) -> str:
    try:
        return await url
    except (Unavailable, DeadlineExceeded):
        # Not of this container: the API says that the runtime is away.
        raise
    except RuntimeCallFailed as error:
        raise Refused("unavailable", str(error)) from error
