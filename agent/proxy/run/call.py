# SPDX-License-Identifier: Apache-2.0
"""One call on its way through the proxy.

Changed by its link, and by the judge through `release` and `refuse` alone.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Protocol

import msgspec

from agent.proxy.frames.layout import DATA, END_STREAM, HEAD_BYTES, PADDED, data_frame, frame, framed, with_content
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.frames.routes import CallRoute, Holding
from agent.proxy.gates.ledger import LedgerContainer, Sandbox
from agent.proxy.traces.call_spans import CallTrace


class ContainerToMake(msgspec.Struct, frozen=True):
    """CreateContainer: the runtime gives it an id with the answer."""

    sandbox: Sandbox
    name: str
    attempt: int
    annotations: Mapping[str, str]


class KnownContainer(msgspec.Struct, frozen=True):
    sandbox: Sandbox
    container: LedgerContainer


class ContainerToRemove(msgspec.Struct, frozen=True):
    container_id: str


Subject = Sandbox | ContainerToMake | KnownContainer | ContainerToRemove
"""A sandbox alone: RunPodSandbox, StopPodSandbox and RemovePodSandbox."""


class Refusal(msgspec.Struct, frozen=True):
    """The answer of the proxy itself. `code` is gRPC's number."""

    code: int
    text: str


class Verdict(Enum):
    """What becomes of a request, besides a refusal."""

    PASS = auto()
    HOLD = auto()


class Line(Protocol):
    def release(self, call: "ProxyCall", frames: Sequence[bytes]) -> None: ...

    def refuse(self, call: "ProxyCall", refusal: Refusal) -> None: ...


class ProxyCall(msgspec.Struct, eq=False):
    """`request` and `answer` are None where they are not read; they may hold secrets and are never shown."""

    line: Line
    stream: int
    path: str
    route: CallRoute | None
    began_s: float
    deadline_s: float | None = None
    request: bytearray | None = None
    answer: bytearray | None = None
    is_judged: bool = False
    is_sent: bool = False
    """Whether its client has said all it will say."""
    withheld: list[bytes] | None = None
    """The first pieces of a request that may have to change, until the last one is there."""
    held: list[bytes] | None = None
    rewriting: Rewriting | None = None
    is_opened: bool = False
    """Whether the headers of the answer have passed."""
    is_answered: bool = False
    """Whether a part of the answer has passed; what follows cannot change then."""
    code: int | None = None
    text: str = ""
    added_s: float = 0.0
    is_over: bool = False
    kept_bytes: int = 0
    """Of request and answer, since it began."""
    trace: CallTrace | None = None
    """Where its trace is kept."""
    subject: Subject | None = None
    """What the judge remembers of it."""

    def __repr__(self) -> str:
        return f"ProxyCall(stream={self.stream}, path={self.path!r}, code={self.code})"

    def take_withheld(self) -> list[bytes]:
        """The pieces that waited for the last one."""
        frames, self.withheld = self.withheld or [], None
        return frames

    def keep_back(self, flags: int, whole: bytes) -> bytes:
        """Begin to hold with the frame that ends the request; what may travel on nevertheless."""
        content = whole[HEAD_BYTES:]
        is_divisible = len(content) > 1 and not flags & PADDED
        if self.route is None or self.route.holding is not Holding.LAST or not is_divisible:
            self.held, self.withheld = [*(self.withheld or ()), whole], None
            return b""
        self.held = [frame(DATA, flags & END_STREAM, self.stream, content[-1:])]
        return data_frame(self.stream, content[:-1])

    def release(self, message: bytes | None = None) -> None:
        """Let the request go on, with another message in place of its own if one is given. That message must have the
        length of the first one, for its bytes are already counted at both ends. Raises ValueError where it has not, or
        where a part of the request is out of reach; the request stays held."""
        if self.held is None or self.is_over:
            return
        frames = self.held
        if message is not None:
            try:
                frames = with_content(frames, framed(message))
            except ValueError as error:
                raise ValueError(f"{self.path}: the held request cannot become another one: {error}") from None
        self.held = None
        self.line.release(self, frames)

    def refuse(self, refusal: Refusal) -> None:
        """Answer in place of the runtime, which hears that the call was given up."""
        if self.held is not None:
            self.abort(refusal)

    def abort(self, refusal: Refusal) -> None:
        """Answer in place of the runtime, whether the request has reached it or not."""
        if not self.is_over:
            self.line.refuse(self, refusal)


class CallJudge(Protocol):
    """Who decides. All of this is called from the loop and returns at once."""

    def judge(self, call: ProxyCall, message: bytes) -> Verdict | Refusal: ...

    def finish(self, call: ProxyCall) -> None: ...

    def rewrite(self, call: ProxyCall, message: bytes) -> bytes: ...
