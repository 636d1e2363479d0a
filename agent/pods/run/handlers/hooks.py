# SPDX-License-Identifier: Apache-2.0
"""Runs hooks: exec, httpGet, sleep; a tcpSocket hook always fails. Probes ask by the same targets and questions.

Never: puts output into an event: it may hold secrets.
"""

import asyncio

import msgspec

from agent.model.clock import Clock
from agent.model.pods.container_fields import Hook, HttpGet
from agent.model.pods.http_question import HttpAnswer, HttpQuestion
from agent.model.pods.pod import ContainerSpec
from agent.model.runtime.error import RuntimeCallFailed
from agent.pods.ports import Containers, ProbeClient

USER_AGENT = "kube-lifecycle/1.36"
LONGEST_OUTPUT = 4096
PLAIN_ANSWER = "server gave HTTP response to HTTPS client"


class ContainerTarget(msgspec.Struct, frozen=True):
    container: ContainerSpec
    instance_id: str
    ip: str


def port_number(container: ContainerSpec, port: int | str) -> int:
    """A port by number, or by the name it has in this container. Raises ValueError."""
    if isinstance(port, int):
        return port
    for one in container.fields.ports:
        if one.name == port:
            return one.container_port
    if port.isdecimal():
        return int(port)
    raise ValueError(f"couldn't find port: {port!r} in container {container.name}")


def http_question(given: HttpGet, target: ContainerTarget, agent: str) -> HttpQuestion:
    """As a kubelet asks, for a hook or a probe: an Accept header without a value takes its default away."""
    names = {one.name.lower() for one in given.http_headers}
    headers = [(one.name, one.value) for one in given.http_headers if one.name.lower() != "accept" or one.value]
    if "user-agent" not in names:
        headers.append(("User-Agent", agent))
    if "accept" not in names:
        headers.append(("Accept", "*/*"))
    return HttpQuestion(
        host=given.host or target.ip,
        port=port_number(target.container, given.port),
        path=given.whole_path,
        is_tls=given.scheme == "HTTPS",
        headers=headers,
    )


class HookResult(msgspec.Struct, frozen=True):
    """What came of it. `text` becomes the message of a container whose postStart failed, and a note of the timeline;
    `output` is in `kepctl explain pod` alone."""

    is_good: bool
    text: str = ""
    output: str = ""
    fell_back: bool = False

    @property
    def record(self) -> str:
        """How it ended and what it wrote, for `kepctl explain pod` alone."""
        word = "ok" if self.is_good else "failed"
        head = f"{word}, {self.text}" if self.text else word
        return f"{head}: {self.output.strip()}" if self.output.strip() else head


class HookRunner:
    """Cancelling a run abandons the hook."""

    def __init__(self, containers: Containers, client: ProbeClient, clock: Clock) -> None:
        self._containers = containers
        self._client = client
        self._clock = clock

    async def run(self, hook: Hook, target: ContainerTarget, limit_s: float | None = None) -> HookResult:
        """Any failure is a result; without a limit it takes as long as it takes."""
        try:
            async with asyncio.timeout(limit_s) as scope:
                return await self._run(hook, target)
        except TimeoutError:
            if not scope.expired():
                raise
        return HookResult(is_good=False, text=f"not finished after {limit_s:g} s")

    async def _run(self, hook: Hook, target: ContainerTarget) -> HookResult:
        try:
            if hook.exec is not None:
                return await self._exec(list(hook.exec.command), target)
            if hook.http_get is not None:
                return await self._http(hook.http_get, target)
            if hook.sleep is not None:
                await self._clock.sleep(hook.sleep.seconds)
                return HookResult(is_good=True)
        except (RuntimeCallFailed, OSError, ValueError) as error:
            return HookResult(is_good=False, text=str(error))
        return HookResult(is_good=False, text="invalid handler: a tcpSocket hook cannot be run")

    async def _exec(self, command: list[str], target: ContainerTarget) -> HookResult:
        answer = await self._containers.exec_sync(target.instance_id, command, 0)
        output = (answer.stdout + answer.stderr)[-LONGEST_OUTPUT:].decode("utf-8", "replace")
        if answer.exit_code == 0:
            return HookResult(is_good=True, output=output)
        return HookResult(is_good=False, text=f"command exited with {answer.exit_code}", output=output)

    async def _http(self, given: HttpGet, target: ContainerTarget) -> HookResult:
        """Any status is a success; only who cannot be reached fails."""
        question = http_question(given, target, USER_AGENT)
        try:
            answer = await self._client.http_get(question)
        except ValueError as error:
            if not question.is_tls or PLAIN_ANSWER not in str(error):
                raise
            return _told(await self._client.http_get(_in_plain(question)), fell_back=True)
        return _told(answer)


def _told(answer: HttpAnswer, *, fell_back: bool = False) -> HookResult:
    body = answer.body[:LONGEST_OUTPUT].decode("utf-8", "replace")
    return HookResult(is_good=True, text=f"status {answer.status}", output=body, fell_back=fell_back)


def _in_plain(question: HttpQuestion) -> HttpQuestion:
    """Without what proves who asks."""
    headers = [(name, value) for name, value in question.headers if name.lower() != "authorization"]
    return HttpQuestion(host=question.host, port=question.port, path=question.path, headers=headers)
