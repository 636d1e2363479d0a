# SPDX-License-Identifier: Apache-2.0
"""One call on its way through the proxy.

Owns: what is known of it while it is under way: path, deadline, what was kept of request and answer, what is held.
Changed by its link, and by the doorman through `release` and `refuse` alone.
Never: decides.
"""

from dataclasses import dataclass, field
from typing import Protocol

from agent.proxy.frames.layout import DATA, END_STREAM, HEAD_BYTES, PADDED, data_frame, frame, framed
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.frames.routes import Holding, Route

__all__ = ["Call", "Doorman", "Line", "Refusal", "Verdict"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer of the proxy itself. `code` is gRPC's number."""

    code: int
    text: str


class Verdict:
    """What becomes of a request, besides a refusal."""

    PASS = "pass"  # noqa: S105  # no password
    HOLD = "hold"


class Line(Protocol):
    """The connections of a call."""

    def release(self, frames: bytes) -> None: ...

    def refuse(self, call: "Call", refusal: Refusal) -> None: ...


@dataclass(slots=True, eq=False)
class Call:
    """`request` and `answer` are None where nobody wants to read them; they may hold secrets and are never shown."""

    line: Line
    stream: int
    path: str
    route: Route | None
    began_s: float
    deadline_s: float | None = None
    request: bytearray | None = field(default=None, repr=False)
    answer: bytearray | None = field(default=None, repr=False)
    is_judged: bool = False
    held: list[bytes] | None = field(default=None, repr=False)
    rewriting: Rewriting | None = None
    code: int | None = None
    text: str = ""
    added_s: float = 0.0
    is_over: bool = False
    note: object = field(default=None)
    """What the doorman remembers of it."""

    def keep_back(self, flags: int, whole: bytes) -> bytes:
        """Begin to hold with the frame that ends the request; what may travel on nevertheless."""
        content = whole[HEAD_BYTES:]
        is_divisible = len(content) > 1 and not flags & PADDED
        if self.route is None or self.route.holding is not Holding.LAST or not is_divisible:
            self.held = [whole]
            return b""
        self.held = [frame(DATA, flags & END_STREAM, self.stream, content[-1:])]
        return data_frame(self.stream, content[:-1])

    def release(self, message: bytes | None = None) -> None:
        """Let the request go on, with another message in place of its own if one is given.

        That message must have the length of the first one, for its bytes are already counted at both ends.
        """
        if self.held is None or self.is_over:
            return
        frames, self.held = b"".join(self.held), None
        if message is not None:
            start = frames.find(bytes(self.request or b""))
            changed = framed(message)
            if start < 0 or len(changed) != len(self.request or b""):
                raise ValueError(
                    f"{self.path}: a request of {len(self.request or b'')} bytes cannot become another one"
                )
            frames = frames[:start] + changed + frames[start + len(changed) :]
        self.line.release(frames)

    def refuse(self, refusal: Refusal) -> None:
        """Answer in place of the runtime, which hears that the call was given up."""
        if self.held is not None and not self.is_over:
            self.held = None
            self.line.refuse(self, refusal)

    def abort(self, refusal: Refusal) -> None:
        """Answer in place of the runtime, whether the request has reached it or not."""
        if not self.is_over:
            self.held = None
            self.line.refuse(self, refusal)


class Doorman(Protocol):
    """Who decides. All of this is called from the loop and returns at once."""

    def judge(self, call: Call, message: bytes) -> str | Refusal: ...

    def finish(self, call: Call) -> None: ...

    def rewrite(self, call: Call, message: bytes) -> bytes: ...
