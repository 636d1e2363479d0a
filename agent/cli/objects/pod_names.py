# SPDX-License-Identifier: Apache-2.0
"""The pod or container that a word means, for every command that takes one.

    POD   NAMESPACE/POD   pod/POD   POD/CONTAINER   NAMESPACE/POD/CONTAINER   pod/POD/CONTAINER

Names are those of lists, or of manifests, without the node's name at their end.
"""

from collections.abc import Sequence

from agent.cli.client import Client
from agent.cli.objects.listed import objects
from agent.cli.objects.words import find_named, split_name, without_kind
from agent.cli.session import CommandFailed
from agent.kinds.kind import DEFAULT_NAMESPACE, Named
from agent.kinds.pods.pods import SHOWN
from agent.kinds.registry import BY_WORD
from agent.model.exit_codes import NOT_FOUND

PODS = BY_WORD["pods"]


def find_pod(daemon: Client, name: str, *, elsewhere: bool = True) -> tuple[str, str]:
    """Namespace and full name. `elsewhere`: also the only pod of that name in another namespace than `default`."""
    found = find_named(PODS, without_kind(name, "pod"), _known(daemon), daemon.namespace, elsewhere=elsewhere)
    return found.namespace, found.name


def find_container(daemon: Client, target: str, *, elsewhere: bool = True) -> tuple[str, str, str]:
    """With an empty container where none is named."""
    known = _known(daemon)
    failed: CommandFailed | None = None
    for pod, container in readings(without_kind(target, "pod")):
        try:
            found = find_named(PODS, pod, known, daemon.namespace, elsewhere=elsewhere)
        except CommandFailed as error:
            if error.exit_code != NOT_FOUND:
                raise failed or error from error
            failed = failed or error
        else:
            return found.namespace, found.name, container
    raise failed or CommandFailed(f'no pod "{target}"', NOT_FOUND)


def given_pod(daemon: Client, name: str) -> tuple[str, str]:
    """As it was said, for pods that no list has: those of a kubelet, or gone by now."""
    namespace, pod = split_name(without_kind(name, "pod"), daemon.namespace)
    return namespace or DEFAULT_NAMESPACE, pod


def _known(daemon: Client) -> Sequence[Named]:
    return [SHOWN.named(pod) for pod in objects(daemon, PODS.plural)]


def readings(target: str) -> list[tuple[str, str]]:
    """Of two parts the first is a pod; if there is none, a namespace."""
    parts = target.split("/")
    if len(parts) == 3:
        return [(f"{parts[0]}/{parts[1]}", parts[2])]
    if len(parts) == 2:
        return [(parts[0], parts[1]), (target, "")]
    return [(target, "")]
