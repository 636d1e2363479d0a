# SPDX-License-Identifier: Apache-2.0
"""The fields Kubernetes has at the places that topology reads, so that a misspelt one is told instead of skipped.

Owns: one set of names per place, as of Kubernetes 1.36; fields of those places that are not read here are listed too.
Source of behaviour: the API types of core/v1, discovery.k8s.io/v1, apps/v1, batch/v1 and meta/v1.
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OBJECT = _names("apiVersion kind metadata spec status")

KNOWN_FIELDS: dict[str, frozenset[str]] = {
    "object": OBJECT,
    "metadata": _names(
        "name generateName namespace selfLink uid resourceVersion generation creationTimestamp deletionTimestamp "
        "deletionGracePeriodSeconds labels annotations ownerReferences finalizers managedFields"
    ),
    "ownerReference": _names("apiVersion kind name uid controller blockOwnerDeletion"),
    "service.spec": _names(
        "ports selector clusterIP clusterIPs type externalIPs sessionAffinity loadBalancerIP loadBalancerSourceRanges "
        "externalName externalTrafficPolicy healthCheckNodePort publishNotReadyAddresses sessionAffinityConfig "
        "ipFamilies ipFamilyPolicy allocateLoadBalancerNodePorts loadBalancerClass internalTrafficPolicy "
        "trafficDistribution"
    ),
    "slice": _names("apiVersion kind metadata addressType endpoints ports"),
    "endpoint": _names("addresses conditions hostname targetRef deprecatedTopology nodeName zone hints"),
    "endpoint.conditions": _names("ready serving terminating"),
    "endpoint.hints": _names("forZones forNodes"),
    "endpoint.hint": _names("name"),
    "endpoint.targetRef": _names("kind namespace name uid apiVersion resourceVersion fieldPath"),
    "node.spec": _names("podCIDR podCIDRs providerID unschedulable taints configSource externalID"),
    "node.status": _names(
        "capacity allocatable phase conditions addresses daemonEndpoints nodeInfo images volumesInUse volumesAttached "
        "config runtimeHandlers features declaredFeatures"
    ),
    "node.condition": _names("type status lastHeartbeatTime lastTransitionTime reason message observedGeneration"),
    "taint": _names("key value effect timeAdded"),
    "pod.spec": _names(
        "volumes initContainers containers ephemeralContainers restartPolicy terminationGracePeriodSeconds "
        "activeDeadlineSeconds dnsPolicy nodeSelector serviceAccountName serviceAccount automountServiceAccountToken "
        "nodeName hostNetwork hostPID hostIPC shareProcessNamespace securityContext imagePullSecrets hostname "
        "subdomain affinity schedulerName tolerations hostAliases priorityClassName priority dnsConfig readinessGates "
        "runtimeClassName enableServiceLinks preemptionPolicy overhead topologySpreadConstraints setHostnameAsFQDN os "
        "hostUsers schedulingGates resourceClaims resources hostnameOverride workloadRef schedulingGroup"
    ),
    "affinity": _names("nodeAffinity podAffinity podAntiAffinity"),
    "nodeAffinity": _names(
        "requiredDuringSchedulingIgnoredDuringExecution preferredDuringSchedulingIgnoredDuringExecution"
    ),
    "nodeSelector": _names("nodeSelectorTerms"),
    "preferredTerm": _names("weight preference"),
    "nodeSelectorTerm": _names("matchExpressions matchFields"),
    "requirement": _names("key operator values"),
    "labelSelector": _names("matchLabels matchExpressions"),
    "toleration": _names("key operator value effect tolerationSeconds"),
    "constraint": _names(
        "maxSkew topologyKey whenUnsatisfiable labelSelector minDomains nodeAffinityPolicy nodeTaintsPolicy "
        "matchLabelKeys"
    ),
    "template": _names("metadata spec"),
    "workload.spec": _names(
        "replicas selector template strategy updateStrategy minReadySeconds revisionHistoryLimit paused "
        "progressDeadlineSeconds serviceName volumeClaimTemplates podManagementPolicy ordinals "
        "persistentVolumeClaimRetentionPolicy parallelism completions activeDeadlineSeconds podFailurePolicy "
        "successPolicy backoffLimit backoffLimitPerIndex maxFailedIndexes manualSelector ttlSecondsAfterFinished "
        "completionMode suspend podReplacementPolicy managedBy scheduling"
    ),
}
