# SPDX-License-Identifier: Apache-2.0
"""Names under which a pod is found: labels, annotations, log files."""

UID = "io.kubernetes.pod.uid"
NAME = "io.kubernetes.pod.name"
NAMESPACE = "io.kubernetes.pod.namespace"
CONTAINER = "io.kubernetes.container.name"
GRACE = "io.kubernetes.pod.terminationGracePeriod"
CONTAINER_HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
PRE_STOP = "io.kubernetes.container.preStopHandler"
PORTS = "io.kubernetes.container.ports"
CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_SEEN = "kubernetes.io/config.seen"
INSTANCE = "kepd.dev/instance"
HASH = "kepd.dev/manifest-hash"
FILE = "kepd.dev/manifest-file"
GROUP = "kepd.dev/control-group"
NAME_SERVERS = "kepd.dev/name-servers"
EPHEMERAL = "kepd.dev/ephemeral-container"
LONGEST_FILE_NAME = 255
LOG_SUFFIX = ".log"


def signal_word(signal: str) -> str:
    """A signal as CRI calls it, out of how a manifest does: `SIGRTMIN+3` is one word there."""
    return signal.replace("+", "PLUS").replace("-", "MINUS")


def signal_name(word: str) -> str:
    return word.replace("PLUS", "+").replace("MINUS", "-")


def log_directory_name(namespace: str, pod: str, uid: str) -> str:
    """Below `pods.logDirectory`."""
    return f"{namespace}_{pod}_{uid}"


def log_link_name(namespace: str, pod: str, container: str, container_id: str) -> str:
    """Below `pods.logLinkDirectory`, cut so that the name can exist."""
    tail = f"-{container_id}{LOG_SUFFIX}"
    head = f"{pod}_{namespace}_{container}"
    return head[: LONGEST_FILE_NAME - len(tail)] + tail
