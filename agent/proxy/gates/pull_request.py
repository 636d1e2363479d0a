# SPDX-License-Identifier: Apache-2.0
"""A kubelet's PullImage as a request to the pull queue; the call itself reaches the runtime as the kubelet wrote it.

Never: keeps or shows a credential: requests with the same ones have the same fingerprint.
"""

import hashlib

from agent.model.images.pull import PodIdentity, PullPolicy, PullRequest
from agent.model.text.outside_text import login_values
from agent.wire.cri import runtime_v1_pb2 as pb

HANDLER = "io.containerd.cri.runtime-handler"


def read_pull(message: bytes, salt: bytes) -> tuple[PullRequest, str]:
    """The request and its fingerprint. Raises ValueError."""
    call = pb.PullImageRequest.FromString(message)
    pod = call.sandbox_config.metadata
    handler = call.image.runtime_handler or call.image.annotations.get(HANDLER, "")
    request = PullRequest(
        image=call.image.image,
        # A kubelet asks only after it has decided that the registry has to be asked.
        policy=PullPolicy.ALWAYS,
        pod=PodIdentity(uid=pod.uid, namespace=pod.namespace, name=pod.name),
        handler=handler,
    )
    secret = call.auth.SerializeToString(deterministic=True)
    return request, hashlib.blake2b(secret, key=salt, digest_size=8).hexdigest() if secret else "public"


def pull_secrets(message: bytes) -> list[str]:
    """What of the request must not be kept from the runtime's answer. Raises ValueError."""
    auth = pb.PullImageRequest.FromString(message).auth
    secrets = login_values(auth.username, auth.password, auth.identity_token, auth.registry_token)
    return [*secrets, auth.auth] if auth.auth else secrets
