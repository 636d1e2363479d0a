# SPDX-License-Identifier: Apache-2.0
"""Kinds of others that people's manifests have, with what serves on a node instead. A new one is a line."""

from collections.abc import Mapping

_RIGHTS = "rights here are levels of the door: `kepctl kubeconfig --level read|operate|admin`"
_WAY_IN = "a Deployment of any proxy with hostPorts serves"
_MESH = "kepd runs no mesh; Services, NetworkPolicies and a proxy with hostPorts serve"
_MONITORING = "scrape kepd's own /metrics, and pods by a Prometheus that you configure"
_CLUSTER = "it extends an API server, and there is none here"
_NO_DRIVERS = "kepd runs no storage drivers; claims get directories"
_SCALING = "kepd scales nothing by itself; `kepctl scale` changes replicas"
_DELIVERY = "render it, and `kepctl apply -f` what comes out, or put that into the manifest directory"
_CERTIFICATES = "put the certificate into a Secret; any ACME client on the node can write it there"

FOREIGN_KINDS: Mapping[str, str] = {
    "ControllerRevision": "kepd keeps the revisions of workloads itself",
    "Event": "kepd keeps the events of this node itself",
    "PodSecurityPolicy": "securityContext of each pod says what it may",
    **dict.fromkeys(("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"), _RIGHTS),
    **dict.fromkeys(("IngressRoute", "HTTPRoute", "GRPCRoute", "GatewayClass"), _WAY_IN),
    **dict.fromkeys(
        (
            "Gateway", "VirtualService", "DestinationRule", "ServiceEntry", "PeerAuthentication", "Sidecar",
            "AuthorizationPolicy", "RequestAuthentication", "EnvoyFilter", "Telemetry", "ServiceProfile",
        ),
        _MESH,
    ),
    **dict.fromkeys(("Prometheus", "Alertmanager", "ServiceMonitor", "PodMonitor", "PrometheusRule"), _MONITORING),
    **dict.fromkeys(
        (
            "CustomResourceDefinition", "APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
            "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema",
            "PriorityLevelConfiguration", "CertificateSigningRequest",
        ),
        _CLUSTER,
    ),
    **dict.fromkeys(
        ("CSIDriver", "CSINode", "CSIStorageCapacity", "VolumeAttachment", "VolumeSnapshot", "VolumeSnapshotClass"),
        _NO_DRIVERS,
    ),
    **dict.fromkeys(("HorizontalPodAutoscaler", "VerticalPodAutoscaler", "ScaledObject"), _SCALING),
    **dict.fromkeys(("Application", "ApplicationSet", "HelmRelease", "HelmChart", "Kustomization"), _DELIVERY),
    **dict.fromkeys(("Certificate", "Issuer", "ClusterIssuer"), _CERTIFICATES),
    **dict.fromkeys(("SealedSecret", "ExternalSecret"), "write the Secret, with mode 600"),
}  # fmt: skip
