# SPDX-License-Identifier: Apache-2.0
"""What a pod asks of the images. A directory with a file per key, which has no type, can be a pull secret as well."""

from collections.abc import Iterator

from agent.model.images.credential import PULL_SECRET_KEYS, PullSecret, SecretId, SecretText
from agent.model.images.pull import PodIdentity, PullPolicy, PullRequest
from agent.model.pods.pod import PodSpec
from agent.pods.plan.drain import priority_of
from agent.pods.runtime.environment import Sources


def image_request(pod: PodSpec, reference: str, policy: str, container: str, sources: Sources) -> PullRequest:
    found = dict(_secrets(pod, sources))
    return PullRequest(
        image=reference,
        policy=PullPolicy(policy),
        pod=PodIdentity(uid=pod.uid, namespace=pod.namespace, name=pod.name),
        container=container,
        priority=priority_of(pod.spec),
        secrets=tuple(one for one in found.values() if one is not None),
        missing_secrets=tuple(name for name, one in found.items() if one is None),
    )


def _secrets(pod: PodSpec, sources: Sources) -> Iterator[tuple[str, PullSecret | None]]:
    for one in pod.spec.image_pull_secrets:
        source = sources.get(("Secret", pod.namespace, one.name))
        if source is None:
            yield one.name, None
            continue
        kind = next((kind for kind, key in PULL_SECRET_KEYS.items() if key in source.data), "")
        key = PULL_SECRET_KEYS.get(kind)
        data = {key: SecretText(source.data[key].decode("utf-8", "replace"))} if key else {}
        yield one.name, PullSecret(SecretId(pod.namespace, one.name), kind, data)
