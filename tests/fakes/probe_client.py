# SPDX-License-Identifier: Apache-2.0
"""Containers that answer as a test says."""

from agent.model.pods.http_question import HttpAnswer, HttpQuestion


class FakeProbeClient:
    """`answers` by port: a status, an answer, or an exception to raise. Ports nobody speaks of refuse."""

    def __init__(self) -> None:
        self.answers: dict[int, HttpAnswer | Exception | int | str] = {}
        self.asked: list[HttpQuestion] = []

    async def http_get(self, question: HttpQuestion) -> HttpAnswer:
        self.asked.append(question)
        answer = self._answer(question.port)
        if isinstance(answer, HttpAnswer):
            return answer
        return HttpAnswer(status=int(answer))

    async def tcp_connect(self, host: str, port: int) -> None:
        del host
        self._answer(port)

    async def grpc_check(self, host: str, port: int, service: str, timeout_s: float) -> str:
        del host, service, timeout_s
        try:
            return str(self._answer(port))
        except OSError as error:
            return str(error)

    def _answer(self, port: int) -> HttpAnswer | int | str:
        answer = self.answers.get(port, ConnectionRefusedError(111, "Connection refused"))
        if isinstance(answer, Exception):
            raise answer
        return answer
