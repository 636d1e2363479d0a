# SPDX-License-Identifier: Apache-2.0
"""Enhancements that are no work of a node, or that kepd leaves to others, and whose work they are."""

SCHEDULER, CONTROLLER, API = "the scheduler's work", "a controller's work", "the API server's work"
EXPLAINED = f"{SCHEDULER}; `kepctl explain spread` explains it"
ELSEWHERE = (
    ("895", "spread of pods over domains", EXPLAINED),
    ("3022", "least number of domains of a spread", EXPLAINED),
    ("3094", "taints and affinity in a spread", EXPLAINED),
    ("3243", "spread of the pods of one rollout", EXPLAINED),
    ("3990", "a spread that gives way", SCHEDULER),
    ("3101", "one pod for one node", SCHEDULER),
    ("2307", "Jobs that count pods by finalizers", f"{CONTROLLER}; Jobs from files count in records of kepd"),
    ("2593", "several ranges for the pods of nodes", CONTROLLER),
    ("2799", "no Secrets for tokens of service accounts", API),
    ("3136", "beta interfaces off by default", API),
    ("3488", "admission by CEL", API),
    ("3685", "reconciler of EndpointSlices as a library", CONTROLLER),
    ("2590", "subresources by kubectl", "kubectl's work"),
    ("3744, 3935", "versions of Go, and of nodes beside control planes", "a matter of releases"),
)
