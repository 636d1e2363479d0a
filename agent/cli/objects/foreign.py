# SPDX-License-Identifier: Apache-2.0
"""Words of kubectl, podman, docker, crictl and systemctl that kepctl does not have, and what serves in their place.

People type them before they read anything, and the nearest word that kepctl has often means something else. Each text
goes behind `no command "stop" here`; what it calls `kepctl …` is a line that works, and a test tries them all. The page
for those who know kubectl has the same rows.
"""

from collections.abc import Mapping
from types import MappingProxyType


def _each(*rows: tuple[str, str]) -> Mapping[str, str]:
    return MappingProxyType({word: text for words, text in rows for word in words.split("|")})


# Kinds. As the first of several words each is a kind and never a pod's name: what ends pods must not end one that is
# called like the object of another kind.
KINDS = _each(
    (
        "gateways|gateway|gtw|httproutes",
        "a Service of type NodePort or LoadBalancer is reached from outside: kepctl get services",
    ),
    ("csidrivers|csinodes|volumeattachments", "claims get directories: kepctl get pvc,pv"),
    ("componentstatuses|componentstatus|cs|apiservices", "the parts of this node are in kepctl get planes"),
    (
        "horizontalpodautoscalers|horizontalpodautoscaler|hpa",
        "the number of pods is yours to set: kepctl scale deploy/NAME --replicas 3",
    ),
    (
        (
            "roles|role|rolebindings|rolebinding|clusterroles|clusterrole|"
            "clusterrolebindings|clusterrolebinding|certificatesigningrequests|csr"
        ),
        "groups of this machine say who may do what: kepctl config show",
    ),
    (
        (
            "customresourcedefinitions|customresourcedefinition|crds|crd|"
            "mutatingwebhookconfigurations|validatingwebhookconfigurations|flowschemas"
        ),
        "only a cluster has it; the kinds that there are: kepctl api-resources",
    ),
    ("sandboxes|sandbox", "each pod has one: kepctl get pods"),
    ("volumes|networks", "what pods have of them: kepctl describe pod NAME"),
    ("units", "the parts of kepd: kepctl get planes"),
)

# Commands, those of groups too. No text ends anything unasked.
COMMANDS = _each(
    ("replace|update|rename", "change the manifest: kepctl edit KIND NAME; kepctl apply -f FILE"),
    ("auth|certificate", "groups of this machine say who may do what: kepctl config show"),
    ("autoscale", "the number of pods is yours to set: kepctl scale deploy/NAME --replicas 3"),
    ("cluster-info|info|system", "kepctl status; kepctl doctor"),
    ("taint", "what lets no pod start: kepctl cordon; what ends those that run as well: kepctl drain"),
    ("kustomize", "kepctl apply -k DIR --dry-run=client"),
    ("proxy", "kepctl port-forward svc/NAME 8080:80; the API itself: kepctl api"),
    ("api-versions", "kepctl api-resources"),
    ("options|plugin|alpha|kuberc|convert", "all that there is: kepctl --help"),
    ("start", "a pod starts when its manifest is there: kepctl apply -f FILE; one that ended: kepctl restart POD"),
    ("stop|stopp|rm|rmp|remove|destroy|down", "kepctl delete pod NAME; what that would do: kepctl plan stop NAME"),
    ("kill", "kepctl delete pod NAME --now; one container: kepctl restart POD/CONTAINER"),
    ("rmi|prune", "images go when nothing uses them; see which: kepctl gc --dry-run"),
    ("ls|list|list-units|show|cat", "kepctl get pods; the other kinds: kepctl api-resources"),
    ("inspectp", "kepctl describe pod NAME"),
    ("inspecti|history", "kepctl inspect image NAME; what happened to a pod: kepctl timeline POD"),
    ("imagefsinfo|df", "kepctl get filesystems"),
    ("statsp|metricsp|metrics", "kepctl top pods"),
    ("port", "kepctl describe pod NAME; kepctl port-forward POD 8080:80"),
    ("runp|play|kube|up|compose|install", "kepctl apply -f FILE"),
    ("pause|unpause|freeze|thaw", "a container cannot be paused; to end pods: kepctl scale deploy/NAME --replicas 0"),
    ("commit|save|export", "a container's state goes to an archive: kepctl checkpoint POD/CONTAINER"),
    ("build|push|tag|load|import|search|manifest", "images come from a registry: kepctl pull IMAGE"),
    (
        "login|logout",
        "a registry's login is a Secret: kepctl create secret docker-registry NAME --docker-username USER",
    ),
    ("network|volume", "what a pod has of them: kepctl describe pod NAME"),
    ("generate", "kepctl run NAME --image IMAGE --dry-run=client -o yaml"),
    ("healthcheck|is-active|is-system-running|ping", "kepctl health"),
    ("enable|disable|mask|unmask", "the planes that run are keys of the configuration: kepctl config show"),
    ("reload|daemon-reload|runtime-config|update-runtime-config", "kepctl config reload"),
    ("journalctl|journal", "logs of the node: kepctl node-logs kepd; of a pod: kepctl logs POD"),
    ("log|tail", "kepctl logs POD; as it grows: kepctl logs -f POD"),
    ("sh|bash|shell|ssh|enter", "kepctl exec -it POD -- sh"),
    ("watch", "kepctl get pods -w; over the whole terminal: kepctl ui"),
    ("context|contexts|use|ctx", "one daemon is asked, by its socket: kepctl --endpoint SOCKET status"),
    ("why", "kepctl explain pod NAME"),
    ("traceroute", "kepctl trace POD SERVICE; kepctl explain route SERVICE"),
    ("nslookup|dig|resolve", "kepctl explain dns NAME"),
    ("man", "kepctl help apply"),
    ("create statefulset", "write its manifest: kepctl apply -f FILE"),
    ("create namespace|create ns", "it need not be made; to give it labels: kepctl apply -f FILE"),
    ("create pod", "kepctl run NAME --image IMAGE"),
    (
        "create role|create rolebinding|create clusterrole|create clusterrolebinding|create serviceaccount",
        "groups of this machine say who may do what: kepctl config show",
    ),
    ("create ingress", "a node's port leads to a Service: kepctl create service nodeport NAME --tcp 80"),
    (
        "set image|set env|set resources|set selector",
        "change the manifest: kepctl edit deploy NAME",
    ),
    ("config view|config get", "kepctl config show"),
    (
        (
            "config use-context|config get-contexts|config current-context|config set-context|config set-cluster|"
            "config set-credentials|config get-clusters|config get-users"
        ),
        "one daemon is asked, by its socket: kepctl --endpoint SOCKET status",
    ),
    ("inspect *", "kepctl inspect image NAME; kepctl describe pod NAME"),
    ("inspect pod|inspect container|inspect service", "kepctl describe pod NAME; kepctl get pods -o yaml"),
)  # fmt: skip

# Flags, by themselves or behind their command.
FLAGS = _each(
    ("--kubeconfig|--context|--cluster|--server|--as", "the socket says which: kepctl --endpoint SOCKET status"),
    ("--record|--field-manager|--cascade|--validate|--chunk-size|--server-side|--force-conflicts", "leave it out"),
    ("--force|--grace-period", "kepctl delete pod NAME --grace 0"),
    ("--prune", "what is not wanted any more is deleted: kepctl delete -f FILE"),
    ("--recursive|-R", "of a directory the files are read; name those below too: kepctl apply -f DIR -f DIR/MORE"),
    ("--template|--raw", "kepctl get pods -o jsonpath={.items[*].metadata.name}; the API itself: kepctl api"),
    ("--show-kind", "kepctl get pods -o name"),
    ("--watch-only", "kepctl events -w"),
    (
        "drain --ignore-daemonsets|drain --delete-emptydir-data",
        "all pods of the node end, whoever made them; leave it out: kepctl drain",
    ),
    ("drain --disable-eviction", "kepctl drain --force"),
    ("drain --pod-selector", "kepctl drain --selector app=web"),
    ("drain --grace-period", "kepctl drain --grace 30"),
    (
        "run --name|run -d|run --detach|run -p|run --publish|run -v|run --volume|run --network|run -e",
        "kepctl run NAME --image IMAGE --port 80 --env NAME=VALUE",
    ),
    ("logs --limit-bytes|logs --max-log-requests", "kepctl logs POD --since 10m"),
    ("rollout restart --all", "kepctl rollout restart deploy/NAME"),
)  # fmt: skip


def in_place_of(word: str, known: Mapping[str, str]) -> str:
    """What serves in place of a word that kepctl lacks, as the end of a message; empty for a word of no program. A
    word of a group comes with the group before it."""
    found = known.get(word.lower(), "")
    return f"; here it is: {found}" if found.startswith("kepctl") else f"; {found}" if found else ""


def in_place_of_flag(flag: str, command: str) -> str:
    """`command`: the words before it."""
    paths = (f"{command} {flag}", f"{command.partition(' ')[0]} {flag}", flag)
    return next(filter(None, (in_place_of(one, FLAGS) for one in paths)), "")
