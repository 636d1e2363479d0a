# SPDX-License-Identifier: Apache-2.0
"""Knows priority and policy of this node's pods, which a kubelet's pull does not carry (IMG-X07)."""

from collections.abc import Iterable

from agent.model.image_pull import PullPolicy

__all__ = ["FollowedPods"]


class FollowedPods:
    """The follower of pods writes it, and a pull of theirs reads it. It stays empty while no pods are followed."""

    def __init__(self) -> None:
        self._priorities: dict[str, int] = {}
        self._policies: dict[tuple[str, str], PullPolicy] = {}

    def replace(self, pods: Iterable[tuple[str, int, str, PullPolicy]]) -> None:
        """All pods there are: uid, priority, full name of an image, policy; a pod has a line for each image."""
        known = list(pods)
        self._priorities = {uid: priority for uid, priority, _, _ in known}
        # An image that a pod names twice is asked for by the stricter of both.
        lenient_first = sorted(known, key=lambda one: one[3] is PullPolicy.ALWAYS)
        self._policies = {(uid, image): policy for uid, _, image, policy in lenient_first}

    def priority_of(self, uid: str) -> int:
        """Of a pod; 0 of one that is not known."""
        return self._priorities.get(uid, 0)

    def policy_of(self, uid: str, image: str) -> PullPolicy | None:
        """By which a pod wants an image, by its full name; None where that is not known."""
        return self._policies.get((uid, image))
