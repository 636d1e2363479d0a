# SPDX-License-Identifier: Apache-2.0
"""The limits, order options and rewrites of the pull queue, as one value that can be replaced while pulls run.

The defaults are neutral: with them the queue is first come first served (the kubelet's side: KEP-3673). A rewrite pulls
from another repository, as containerd has no path rewrite; its credentials go by the target, or by the original if
`images.rewrite.auth` says so.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
from msgspec.structs import replace

from agent.model.images.reference import ImageReference, ReferenceInvalid, parse_reference

DEFAULT_HEAD_START: tuple[tuple[int, float], ...] = (
    (2_000_001_000, 600), (2_000_000_000, 300), (1_000_000, 60), (1, 30), (0, 0),
)  # fmt: skip


class RewriteRule(msgspec.Struct, frozen=True, kw_only=True):
    """`match` is searched in the normalised repository. `is_only`: the original is never tried."""

    match: str
    replace: str
    is_only: bool = False


class RewriteTarget(msgspec.Struct, frozen=True):
    reference: ImageReference
    rule: RewriteRule


def rewritten(reference: ImageReference, rules: Sequence[RewriteRule]) -> RewriteTarget | None:
    """The first rule that matches, applied once; tag and digest stay. None: pull what is written."""
    for rule in rules:
        pattern = re.compile(rule.match)
        if not pattern.search(reference.repo):
            continue
        repo = pattern.sub(rule.replace, reference.repo, count=1)
        text = repo + (f":{reference.effective_tag}" if reference.effective_tag else "")
        text += f"@{reference.digest}" if reference.digest else ""
        try:
            target = parse_reference(text)
        except ReferenceInvalid:
            return None
        return None if target.repo == reference.repo else RewriteTarget(target, rule)
    return None


def rule_fault(rule: RewriteRule) -> str:
    try:
        pattern = re.compile(rule.match)
    except re.error as error:
        return f"{rule.match!r} is not a regular expression: {error}"
    try:
        pattern.sub(rule.replace, "")
        re.sub(f"(?:{rule.match})?", rule.replace, "registry.example.com/a")
    except (re.error, IndexError) as error:
        return f"{rule.replace!r} does not fit {rule.match!r}: {error}"
    return ""


class Rate(msgspec.Struct, frozen=True):
    """Starts per second, and how many may come at once. 0 per second = no limit."""

    per_s: float = 0
    burst: int = 1


class StartTokens(msgspec.Struct, frozen=True):
    """A token bucket as it was at a moment: full at first, one token per start, refilled by time."""

    tokens: float
    at_s: float

    @classmethod
    def full(cls, rate: Rate, now_s: float) -> Self:
        return cls(rate.burst, now_s)

    def refilled(self, rate: Rate, now_s: float) -> Self:
        """What is in it now; never more than the burst."""
        return replace(self, tokens=min(self.tokens + (now_s - self.at_s) * rate.per_s, rate.burst), at_s=now_s)

    def without_one(self) -> Self:
        return replace(self, tokens=self.tokens - 1)

    def next_token_s(self, rate: Rate) -> float:
        return self.at_s + (1 - self.tokens) / rate.per_s


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """None or 0 = no such limit, unless said otherwise."""

    max_parallel: int = 0
    per_registry: Mapping[str, int] = msgspec.field(default_factory=dict)
    per_registry_default: int | None = None
    registry_groups: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Host: name of the group whose limit it shares with others."""
    per_pod_max: int | None = None
    critical_reserve: int = 0
    lend_s: float = 0
    """Reserved slots may be lent to pulls whose size term is at most this, as long as all that run are such."""
    large_bytes: int | None = None
    large_max: int | None = None
    prefetch_max: int = 1
    fair_share_s: float = 0
    head_start: tuple[tuple[int, float], ...] = DEFAULT_HEAD_START
    head_start_negative_s: float = -60
    size_rate: float | None = None
    size_cap_s: float = 120
    size_unknown_s: float = 10
    is_shared: bool = True
    """Requests for the same thing share a flight."""
    is_rechecked: bool = True
    """A request that is served while it waits is answered at once."""
    always_join_max_age_s: float = 60
    rate: Rate = msgspec.field(default_factory=Rate)
    registry_rates: Mapping[str, Rate] = msgspec.field(default_factory=dict)
    cancel_grace_s: float = 0
    cancel_keep_share: float = 0.9
    is_one_per_reference: bool = True
    is_cancelled_with_pod: bool = True
    is_refused_by_rate: bool = False
    """An empty bucket fails a pull, as the kubelet has it, where it would otherwise only delay it."""

    def as_kubelet(self, *, is_serial: bool = False) -> Self:
        """First come first served with nothing but the number of slots and the rate."""
        return replace(
            type(self)(),
            max_parallel=1 if is_serial else self.max_parallel,
            rate=self.rate,
            head_start=(),
            head_start_negative_s=0,
            is_shared=False,
            is_rechecked=False,
            is_one_per_reference=False,
            is_cancelled_with_pod=False,
            is_refused_by_rate=True,
        )

    def head_start_s(self, priority: int) -> float:
        """How much earlier a request of this priority counts as having come."""
        for threshold, start_s in self.head_start:
            if priority >= threshold:
                return start_s
        return self.head_start_negative_s if priority < 0 else 0

    def size_term_s(self, size_bytes: int | None) -> float:
        """How much later a pull of this size counts."""
        if not self.size_rate:
            return 0
        if size_bytes is None:
            return self.size_unknown_s
        return min(size_bytes / self.size_rate, self.size_cap_s)

    def registry_group(self, registry: str) -> str:
        return self.registry_groups.get(registry, registry)

    def registry_limit(self, group: str) -> int | None:
        return self.per_registry.get(group, self.per_registry_default)
