# SPDX-License-Identifier: Apache-2.0
"""Thresholds of eviction: what is configured over a kubelet's defaults, one by one (EVN-01, EVN-03)."""

from agent.config.document import PodEviction
from agent.pods.plan.evict import EvictionRules, Threshold

DEFAULT_HARD = {
    "memory.available": str(100 << 20),
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}


def eviction_rules(eviction: PodEviction, *, has_kubelet: bool) -> EvictionRules | None:
    """None where kepd evicts no pods."""
    if eviction.mode == "off" or (eviction.mode == "auto" and has_kubelet):
        return None
    given = dict(eviction.min_reclaim)
    hard = [_threshold(signal, text, given) for signal, text in {**DEFAULT_HARD, **eviction.hard}.items()]
    soft = [
        _threshold(signal, text, given, eviction.soft_grace.get(signal, 0.0)) for signal, text in eviction.soft.items()
    ]
    return EvictionRules(
        thresholds=tuple(one for one in (*hard, *soft) if one.quantity or one.share),
        most_grace_s=eviction.max_grace,
        transition_s=eviction.transition,
        period_s=eviction.period,
        readmits=eviction.readmit,
    )


def _threshold(signal: str, text: str, min_reclaim: dict[str, str], grace_s: float = 0.0) -> Threshold:
    quantity, share = _amount(text)
    reclaim, reclaim_share = _amount(min_reclaim.get(signal, "0"))
    return Threshold(
        signal=signal,
        quantity=quantity,
        share=share,
        grace_s=grace_s,
        reclaim=reclaim,
        reclaim_share=reclaim_share,
    )


def _amount(text: str) -> tuple[int, float]:
    return (0, float(text[:-1]) / 100) if text.endswith("%") else (int(text), 0.0)
