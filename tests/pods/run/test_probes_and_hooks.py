# SPDX-License-Identifier: Apache-2.0
"""What answers mean: probes and hooks over fakes."""

from typing import Any

import msgspec
import pytest

from agent.model.pods.container_fields import Hook, Probe
from agent.model.pods.http_question import HttpAnswer
from agent.model.runtime.error import DeadlineExceeded, RuntimeCallFailed
from agent.pods.plan.probe import AnswerKind, ProbeAnswer
from agent.pods.run.handlers.hooks import ContainerTarget, HookRunner
from agent.pods.run.handlers.probes import ProbeRunner
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.probe_client import FakeProbeClient
from tests.pods.pods import container, make_pod

POD = make_pod([container("app", ports=[{"name": "http", "containerPort": 8080}], env=[{"name": "A", "value": "a"}])])
TARGET = ContainerTarget(POD.containers[0], "c1", "10.0.0.2")


class Runtime:
    """Runs commands as a test says."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.commands: list[tuple[list[str], int]] = []

    async def exec_sync(self, _container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
        self.commands.append((command, timeout_s))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return pb.ExecSyncResponse(exit_code=answer, stdout=b"out ", stderr=b"err")


async def ask(given: dict, client: FakeProbeClient | None = None, runtime: Runtime | None = None) -> ProbeAnswer:
    probe = msgspec.convert(given, Probe)
    probes = ProbeRunner(runtime or Runtime(), client or FakeProbeClient(), 10)  # type: ignore[arg-type]
    return await probes.run(probe, TARGET, probes.share())


class TestProbes:
    @pytest.mark.parametrize(("code", "kind"), [(0, AnswerKind.SUCCESS), (1, AnswerKind.FAILURE)])
    async def test_commands_and_their_codes(self, code: int, kind: AnswerKind) -> None:
        """PRB-07: variables with literal values expand."""
        runtime = Runtime(code)
        answer = await ask({"exec": {"command": ["x", "$(A)$(B)"]}, "timeoutSeconds": 3}, runtime=runtime)

        assert (answer.kind, answer.text, runtime.commands) == (kind, "out err", [(["x", "a$(B)"], 3)])

    async def test_a_command_that_takes_too_long_fails(self) -> None:
        answer = await ask({"exec": {"command": ["x"]}}, runtime=Runtime(DeadlineExceeded("ExecSync", "late")))

        assert answer.kind is AnswerKind.FAILURE

    async def test_what_nobody_could_be_asked_is_tried_three_times(self) -> None:
        """PRB-05."""
        broken = RuntimeCallFailed("ExecSync", "no such container")
        healed, dead = Runtime(broken, broken, 0), Runtime(broken, broken, broken, 0)

        assert (await ask({"exec": {"command": ["x"]}}, runtime=healed)).kind is AnswerKind.SUCCESS
        assert (await ask({"exec": {"command": ["x"]}}, runtime=dead)).kind is AnswerKind.ERROR

    @pytest.mark.parametrize(
        ("status", "kind", "text"),
        [
            (200, AnswerKind.SUCCESS, ""), (399, AnswerKind.WARNING, "Probe terminated redirects, Response body: "),
            (199, AnswerKind.FAILURE, "HTTP probe failed with statuscode: 199"),
            (404, AnswerKind.FAILURE, "HTTP probe failed with statuscode: 404"),
        ],
    )  # fmt: skip
    async def test_statuses(self, status: int, kind: AnswerKind, text: str) -> None:
        """PRB-08."""
        client = FakeProbeClient()
        client.answers[8080] = status

        assert await ask({"httpGet": {"port": "http"}}, client) == ProbeAnswer(kind, text)

    async def test_what_is_sent(self) -> None:
        """PRB-08: an empty Accept header takes it away."""
        client = FakeProbeClient()
        client.answers[80] = 200
        await ask({"httpGet": {"port": 80, "path": "/x", "scheme": "HTTPS", "host": "h"}}, client)
        headers = [{"name": "Accept", "value": ""}, {"name": "User-Agent", "value": "me"}]
        await ask({"httpGet": {"port": 80, "httpHeaders": headers}}, client)

        first, second = client.asked
        assert (first.host, first.path, first.is_tls) == ("h", "/x", True)
        assert dict(first.headers) == {"User-Agent": "kube-probe/1.36", "Accept": "*/*"}
        assert (second.host, list(second.headers)) == ("10.0.0.2", [("User-Agent", "me")])

    async def test_redirects_elsewhere_warn_and_refusals_fail(self) -> None:
        client = FakeProbeClient()
        client.answers[80] = HttpAnswer(status=302, body=b"bye", is_redirect_elsewhere=True)

        assert (await ask({"httpGet": {"port": 80}}, client)).kind is AnswerKind.WARNING
        refused = await ask({"httpGet": {"port": 81}}, client)
        assert (refused.kind, "dial tcp 10.0.0.2:81: connect: connection refused" in refused.text) == (
            AnswerKind.FAILURE,
            True,
        )

    async def test_connections_and_health(self) -> None:
        """PRB-09, PRB-10."""
        client = FakeProbeClient()
        client.answers = {80: 0, 90: "", 91: 'service unhealthy (responded with "NOT_SERVING")'}

        assert (await ask({"tcpSocket": {"port": 80}}, client)).kind is AnswerKind.SUCCESS
        assert (
            await ask({"tcpSocket": {"port": 81}}, client)
        ).text == "dial tcp 10.0.0.2:81: connect: connection refused"
        assert (await ask({"grpc": {"port": 90}}, client)).kind is AnswerKind.SUCCESS
        assert (await ask({"grpc": {"port": 91}}, client)).kind is AnswerKind.FAILURE

    async def test_a_port_without_a_number_is_an_error(self) -> None:
        assert (await ask({"httpGet": {"port": "none"}})).kind is AnswerKind.ERROR


async def hook(given: dict, client: FakeProbeClient | None = None, runtime: Runtime | None = None) -> Any:
    runner = HookRunner(runtime or Runtime(), client or FakeProbeClient(), FakeClock())  # type: ignore[arg-type]
    return await runner.run(msgspec.convert(given, Hook), TARGET)


class TestHooks:
    async def test_commands_are_not_expanded_and_have_no_limit(self) -> None:
        """HOK-06."""
        runtime = Runtime(0)
        result = await hook({"exec": {"command": ["x", "$(A)"]}}, runtime=runtime)

        assert (result.is_good, runtime.commands) == (True, [(["x", "$(A)"], 0)])
        assert not (await hook({"exec": {"command": ["x"]}}, runtime=Runtime(7))).is_good

    @pytest.mark.parametrize("status", [200, 500])
    async def test_any_status_is_a_success(self, status: int) -> None:
        """HOK-07."""
        client = FakeProbeClient()
        client.answers[80] = status

        assert (await hook({"httpGet": {"port": 80}}, client)).is_good
        assert dict(client.asked[0].headers)["User-Agent"] == "kube-lifecycle/1.36"
        assert not (await hook({"httpGet": {"port": 81}}, client)).is_good

    async def test_a_plain_answer_to_tls_is_asked_in_plain_without_credentials(self) -> None:
        """HOK-08."""

        class Plain(FakeProbeClient):
            async def http_get(self, question: Any) -> HttpAnswer:
                self.asked.append(question)
                if question.is_tls:
                    raise ValueError("http: server gave HTTP response to HTTPS client")
                return HttpAnswer(status=200)

        client = Plain()
        headers = [{"name": "Authorization", "value": "secret"}]
        result = await hook({"httpGet": {"port": 80, "scheme": "HTTPS", "httpHeaders": headers}}, client)

        assert (result.is_good, result.fell_back) == (True, True)
        assert "Authorization" not in dict(client.asked[1].headers)

    async def test_a_sleep_of_nothing_and_a_socket(self) -> None:
        """HOK-11, HOK-01."""
        assert (await hook({"sleep": {"seconds": 0}})).is_good
        assert not (await hook({"tcpSocket": {"port": 80}})).is_good
