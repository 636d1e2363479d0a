# SPDX-License-Identifier: Apache-2.0
"""Where this process's access to a cluster comes from.

Owns: the choice between the configured kubeconfig and the service account of a pod (`kubernetes.*` keys).
Never: connects. No source at all is an answer, not an error: a bare node has no cluster.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.drivers.kube.access import SERVICE_ACCOUNT, Access, in_cluster
from agent.drivers.kube.kubeconfig import load_kubeconfig

__all__ = ["find_access"]


def find_access(
    kubeconfig: str, servers: Sequence[str], environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> Access | None:
    """The access to use; None on a node without a cluster. Raises AccessInvalid for one that cannot work."""
    if kubeconfig:
        return load_kubeconfig(Path(kubeconfig)).through(servers)
    if (service_account / "token").exists():
        return in_cluster(environment, service_account).through(servers)
    return None
