# SPDX-License-Identifier: Apache-2.0
"""Asks one question of a probe and says what the answer means.

A question that could not be asked is repeated twice at once. Never: counts answers; plan/probe.py does.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

from agent.model.pods.container_fields import Exec, GrpcCheck, Probe, TcpSocket
from agent.model.pods.http_question import HttpQuestion
from agent.model.runtime.error import DeadlineExceeded, RuntimeCallFailed
from agent.pods.plan.probe import AnswerKind, ProbeAnswer
from agent.pods.ports import Containers, ProbeClient
from agent.pods.run.handlers.hooks import ContainerTarget, http_question, port_number
from agent.pods.runtime.environment import ConfigProblem, ProgramRoom, expand_all

USER_AGENT = "kube-probe/1.36"
TRIES = 3
# One pod has at most this part of the places for exec probes.
SHARES = 4
LONGEST_TEXT = 10 << 10
GOOD_FROM, GOOD_TO, REDIRECT_FROM = 200, 400, 300


class ProbeRunner:
    """Asks for all pods. At most so many exec probes run at once on a node, and for one pod a share of them:
    commands that hang hold no place that other pods' probes could not do without."""

    def __init__(self, containers: Containers, client: ProbeClient, at_once: int) -> None:
        self._containers = containers
        self._client = client
        self._slots = asyncio.Semaphore(at_once)
        self._share = max(at_once // SHARES, 1)

    def share(self) -> asyncio.Semaphore:
        """The places of one pod, to be given with each of its questions."""
        return asyncio.Semaphore(self._share)

    async def run(self, probe: Probe, target: ContainerTarget, share: asyncio.Semaphore) -> ProbeAnswer:
        answer = ProbeAnswer(AnswerKind.ERROR, "not asked")
        for _ in range(TRIES):
            answer = await self._once(probe, target, share)
            if answer.kind is not AnswerKind.ERROR:
                break
        return answer

    async def _once(self, probe: Probe, target: ContainerTarget, share: asyncio.Semaphore) -> ProbeAnswer:
        limit_s = float(probe.timeout_s)
        try:
            if probe.exec is not None:
                async with share, self._slots:
                    return await self._exec(probe.exec, target, probe.timeout_s)
            if probe.http_get is not None:
                question = http_question(probe.http_get, target, USER_AGENT)
                return await _bounded(lambda: self._http(question), limit_s, f'Get "{_url(question)}": ')
            if probe.tcp_socket is not None:
                return await self._tcp(probe.tcp_socket, target, limit_s)
            if probe.grpc is not None:
                return await self._grpc(probe.grpc, target, limit_s)
        except (ConfigProblem, ValueError) as error:
            # A port that has no name here, or a command that no kernel takes: the question cannot be asked.
            return ProbeAnswer(AnswerKind.ERROR, str(error))
        return ProbeAnswer(AnswerKind.ERROR, "missing probe handler")

    async def _exec(self, given: Exec, target: ContainerTarget, timeout_s: int) -> ProbeAnswer:
        values = {env.name: env.value for env in target.container.fields.env if env.value_from is None}
        command = expand_all(given.command, values, "exec.command", ProgramRoom())
        try:
            answer = await self._containers.exec_sync(target.instance_id, command, timeout_s)
        except DeadlineExceeded:
            return ProbeAnswer(AnswerKind.FAILURE, f"command timed out: {command!r} timed out after {timeout_s}s")
        except RuntimeCallFailed as error:
            return ProbeAnswer(AnswerKind.ERROR, f"rpc error: {error.details}")
        output = (answer.stdout + answer.stderr)[:LONGEST_TEXT].decode("utf-8", "replace")
        return ProbeAnswer(AnswerKind.SUCCESS if answer.exit_code == 0 else AnswerKind.FAILURE, output)

    async def _http(self, question: HttpQuestion) -> ProbeAnswer:
        try:
            answer = await self._client.http_get(question)
        except OSError as error:
            where = f"dial tcp {question.host}:{question.port}: " if error.errno else ""
            return ProbeAnswer(AnswerKind.FAILURE, f'Get "{_url(question)}": {where}{_words(error)}')
        except ValueError as error:
            return ProbeAnswer(AnswerKind.FAILURE, f'Get "{_url(question)}": {error}')
        body = answer.body[:LONGEST_TEXT].decode("utf-8", "replace")
        if answer.is_redirect_elsewhere:
            return ProbeAnswer(AnswerKind.WARNING, f"Probe terminated redirects, Response body: {body}")
        if GOOD_FROM <= answer.status < GOOD_TO:
            if answer.status >= REDIRECT_FROM:
                return ProbeAnswer(AnswerKind.WARNING, f"Probe terminated redirects, Response body: {body}")
            return ProbeAnswer(AnswerKind.SUCCESS, body)
        return ProbeAnswer(AnswerKind.FAILURE, f"HTTP probe failed with statuscode: {answer.status}")

    async def _tcp(self, given: TcpSocket, target: ContainerTarget, limit_s: float) -> ProbeAnswer:
        host, port = given.host or target.ip, port_number(target.container, given.port)

        async def connect() -> ProbeAnswer:
            try:
                await self._client.tcp_connect(host, port)
            except OSError as error:
                return ProbeAnswer(AnswerKind.FAILURE, f"dial tcp {host}:{port}: {_words(error)}")
            return ProbeAnswer(AnswerKind.SUCCESS)

        return await _bounded(connect, limit_s, f"dial tcp {host}:{port}: ")

    async def _grpc(self, given: GrpcCheck, target: ContainerTarget, limit_s: float) -> ProbeAnswer:
        text = await self._client.grpc_check(
            target.ip, port_number(target.container, given.port), given.service, limit_s
        )
        return ProbeAnswer(AnswerKind.FAILURE, text) if text else ProbeAnswer(AnswerKind.SUCCESS)


async def _bounded(ask: Callable[[], Awaitable[ProbeAnswer]], limit_s: float, head: str) -> ProbeAnswer:
    """One limit for everything from the first packet to the last byte."""
    try:
        async with asyncio.timeout(limit_s):
            return await ask()
    except TimeoutError:
        return ProbeAnswer(AnswerKind.FAILURE, f"{head}context deadline exceeded")


def _words(error: OSError) -> str:
    return f"connect: {os.strerror(error.errno).lower()}" if error.errno else str(error).lower()


def _url(question: HttpQuestion) -> str:
    host = f"[{question.host}]" if ":" in question.host else question.host
    path = question.path if question.path.startswith("/") else f"/{question.path}"
    return f"{'https' if question.is_tls else 'http'}://{host}:{question.port}{path}"
