# SPDX-License-Identifier: Apache-2.0
"""Whatever two ends and a judge do to any mix of calls, each end sees legal HTTP/2, and no window loses a byte.

KEPD_LINK_EXAMPLES sets how many conversations of 25 calls are tried: 12 where it is not set, 400 for 10 000 streams.
"""

import os
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent.proxy.frames.layout import framed
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.run.call import ProxyCall, Refusal, Verdict
from tests.proxy.frames.streams import WINDOW
from tests.proxy.frames.talk import FIRST_WINDOW, LARGEST_FRAME, Conversation, Talker

EXAMPLES = int(os.environ.get("KEPD_LINK_EXAMPLES", "12"))
CALLS = 25
SERVICE = "/runtime.v1.RuntimeService"
CHANGED = ("ContainerStatus", "PodSandboxStatus", "GetContainerEvents")
PATHS = [f"{SERVICE}/{name}" for name in ("CreateContainer", "StopContainer", "StartContainer", *CHANGED)]
REFUSAL = Refusal(14, "kepd: waiting for sidecar s")
SIZES = (0, 1, 100, 100, 5000, 5000, 5000, 40_000, 200_000)


class Life:
    """What one call did at its ends and what was decided about it."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.verdict: object = None
        self.call: ProxyCall | None = None
        self.answer: list[bytes] | None = None
        self.has_answer_end = False
        self.is_given_up = False


class Story:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.net = Conversation(random)
        self.lives: dict[int, Life] = {}
        self.held: list[int] = []
        self.net.judge.verdict = self.judge
        self.net.judge.change = lambda _call, message: changed(message)
        for end in (self.net.client, self.net.runtime):
            end.meanwhile = self.meanwhile

    def judge(self, call: ProxyCall, _message: bytes) -> Verdict | Refusal:
        life = self.lives[call.stream]
        life.call = call
        if call.path.rpartition("/")[2] in CHANGED:
            life.verdict = "rewrite"
            call.rewriting = Rewriting()
            return Verdict.PASS
        life.verdict = self.random.choice((Verdict.PASS, Verdict.HOLD, REFUSAL))
        if life.verdict is Verdict.HOLD:
            self.held.append(call.stream)
        return life.verdict

    def meanwhile(self) -> None:
        """Between any two pieces of bytes that arrive."""
        if self.held and self.random.random() < 0.02:
            self.decide(self.held.pop(self.random.randrange(len(self.held))))
        elif self.random.random() < 0.002:
            self.net.link.say_goaway()

    def decide(self, stream: int, *, is_go: bool | None = None) -> None:
        life = self.lives[stream]
        assert life.call is not None
        if is_go if is_go is not None else self.random.random() < 0.6:
            life.verdict = Verdict.PASS
            life.call.release()
        else:
            life.verdict = life.verdict if life.call.is_over else REFUSAL
            life.call.refuse(REFUSAL)

    def one_call(self) -> None:
        random, net = self.random, self.net
        path = random.choice((*PATHS, "/x.Service/Any"))
        request = framed(random.randbytes(random.choice(SIZES)))
        is_whole = random.random() < 0.85
        sent = request if is_whole else request[: random.randrange(len(request) + 1)]
        # The judge may decide before this returns.
        stream = net.client.http.get_next_available_stream_id()
        self.lives[stream] = Life(sent)
        assert net.ask(path, sent, ends=is_whole, has_long_headers=random.random() < 0.1) == stream
        net.a_while()
        self.disturb()
        if random.random() < 0.6:
            net.settle()
        self.answer_some()
        net.a_while()
        if random.random() < 0.2:
            self.give_up(random.choice((net.client, net.runtime)), random.choice(list(self.lives)))
        net.a_while()

    def disturb(self) -> None:
        """Another window for new and old streams, more laziness, or less."""
        random, net = self.random, self.net
        for end in (net.client, net.runtime):
            if random.random() < 0.1:
                end.announce(FIRST_WINDOW, random.choice((1000, 20_000, 65_535, 300_000)))
            if random.random() < 0.1:
                end.announce(LARGEST_FRAME, random.choice((16_384, 60_000)))
            if random.random() < 0.3:
                end.is_lazy = not end.is_lazy

    def answer_some(self) -> None:
        random, net = self.random, self.net
        for stream, life in self.lives.items():
            is_there = stream in net.runtime.over and stream not in net.runtime.reset
            if life.answer is None and is_there and random.random() < 0.8:
                life.answer = [random.randbytes(random.choice(SIZES)) for _ in range(random.choice((1, 1, 3)))]
                life.has_answer_end = random.random() < 0.9
                content = b"".join(map(framed, life.answer))
                if not life.has_answer_end:
                    content = content[: random.randrange(len(content) + 1)]
                net.answer(stream, content, ends=life.has_answer_end, has_long_trailers=random.random() < 0.1)

    def give_up(self, end: Talker, stream: int) -> None:
        # A runtime resets what it knows; it does not know what was refused or never went on.
        if end is self.net.client or stream in self.net.runtime.bodies or stream in self.net.runtime.over:
            self.lives[stream].is_given_up = True
            end.give_up(stream)

    def finish(self) -> None:
        """Decide what is held, answer what is asked, reset what stays unfinished."""
        net = self.net
        net.client.is_lazy = net.runtime.is_lazy = False
        for end in (net.client, net.runtime):
            end.meanwhile = lambda: None
        net.settle()
        for stream in self.held:
            self.decide(stream, is_go=True)
        net.settle()
        for stream in list(net.link.calls):
            self.give_up(net.client, stream)
        net.settle()


def changed(message: bytes) -> bytes:
    """Longer, shorter or as it was, by its content."""
    kind = len(message) % 3
    return message + b"more" * 50 if kind == 0 else message[:5] if kind == 1 else message


def check(story: Story) -> None:
    net = story.net
    assert not net.link.calls
    assert (net.client.window, net.runtime.window) == (WINDOW, WINDOW), net.link.requests
    for stream, life in story.lives.items():
        reached = net.runtime.bodies.get(stream, b"")
        assert life.request.startswith(reached), "nothing but the request reaches the runtime, in its order"
        if life.is_given_up:
            continue
        if isinstance(life.verdict, Refusal):
            assert net.client.status.get(stream) == "14"
            continue
        answered = b"".join(map(framed, life.answer or ()))
        if life.verdict == "rewrite":
            answered = b"".join(framed(changed(one)) for one in life.answer or ())
        assert reached == life.request
        if life.has_answer_end:
            assert net.client.status.get(stream) == "0"
            assert net.client.bodies.get(stream, b"") == answered


@pytest.mark.timeout(60 + 10 * EXAMPLES)
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 32))
def test_any_mix_of_calls_leaves_legal_streams_and_whole_windows(seed: int) -> None:
    """FI-1, FI-3, FI-4, FI-16, FI-17, FI-21: pass, hold, refuse and rewrite, resets from both ends at any frame, split
    and padded DATA, CONTINUATION, changed windows, GOAWAY."""
    story = Story(Random(seed))
    for _ in range(CALLS):
        story.one_call()
    story.finish()

    check(story)
