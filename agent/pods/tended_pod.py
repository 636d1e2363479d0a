# SPDX-License-Identifier: Apache-2.0
"""What the runner knows of one pod name: what is wanted, what was seen, what is being done and what went wrong.

Owns: the value and the words that are shown of it. Changed by the runner alone.
Never: starts tasks; holds the two that the runner's group owns.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.model.pod import PodSpec
from agent.model.pod_state import PodState
from agent.pods.backoff import Attempts
from agent.pods.plan import Action, MakeSandbox, RemoveSandbox, SeenContainer, SeenSandbox, StopContainer, kept_sandbox
from agent.pods.view import Details, pod_state, spec_of

__all__ = ["TendedPod"]


@dataclass(slots=True)
class TendedPod:
    """One pod. `is_stale` says that `seen` was looked up before its last step was over."""

    key: str
    wanted: PodSpec | None = None
    seen: tuple[SeenSandbox, ...] = ()
    is_stale: bool = False
    waits_for: str = ""
    is_ending: bool = False
    worker: asyncio.Task[None] | None = None
    looker: asyncio.Task[None] | None = None
    work: Attempts = field(default_factory=Attempts)
    look: Attempts = field(default_factory=Attempts)
    # One that loses its sandbox again and again gets the next one later and later.
    sandboxes: Attempts = field(default_factory=Attempts)
    details: Details = field(default_factory=Details)

    def want(self, pod: PodSpec | None) -> bool:
        """Take over what the manifests say; True if that makes the present work pointless."""
        before, self.wanted = self.wanted, pod
        if before is pod or (before is not None and pod is not None and before.version == pod.version):
            return False
        for attempts in (self.work, self.look, self.sandboxes):
            attempts.reset()
        return not self.is_ending

    def begin(self, actions: Sequence[Action]) -> None:
        """These are done now."""
        self.waits_for = "; ".join(str(action) for action in actions)
        self.is_ending = any(isinstance(action, StopContainer | RemoveSandbox) for action in actions)

    def wait_for(self, what: str) -> None:
        """Say what takes long."""
        self.waits_for = what

    def rest(self) -> None:
        """Nothing is done now."""
        self.waits_for, self.is_ending, self.worker, self.is_stale = "", False, None, True

    def not_before_s(self, actions: Sequence[Action]) -> float:
        """When these may be tried."""
        if any(isinstance(action, MakeSandbox) for action in actions):
            return max(self.work.until_s, self.sandboxes.until_s)
        return self.work.until_s

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do or to show."""
        return self.wanted is None and not self.seen and self.worker is None and self.looker is None

    @property
    def shown_sandbox(self) -> SeenSandbox | None:
        """The one that people want to know of."""
        if self.wanted is not None:
            return kept_sandbox(self.wanted, self.seen)
        return self.seen[0] if self.seen else None

    @property
    def unknown(self) -> list[SeenSandbox | SeenContainer]:
        """Of what the details have to be asked for."""
        sandbox = self.shown_sandbox
        return self.details.missing_of(sandbox) if sandbox is not None else []

    @property
    def shown_spec(self) -> PodSpec | None:
        """What is wanted, else what there is."""
        sandbox = self.shown_sandbox
        return spec_of(sandbox) if self.wanted is None and sandbox is not None else self.wanted

    @property
    def problem(self) -> str:
        """What went wrong."""
        return "; ".join(text for text in (str(self.work), str(self.look)) if text)

    def state(self, about_manifest: str) -> PodState | None:
        """As it is shown; None if there is nothing to show."""
        pod = self.shown_spec
        if pod is None:
            return None
        texts = (self.problem, f"waits for: {self.waits_for}" if self.waits_for else "", about_manifest)
        return pod_state(pod, self.shown_sandbox, self.details, "; ".join(text for text in texts if text))
