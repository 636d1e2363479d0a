# SPDX-License-Identifier: Apache-2.0
"""Lines to begin with, for each command, and the groups in which `kepctl --help` shows commands.

Read only where help is shown; a test types every line.
"""

from collections.abc import Mapping
from types import MappingProxyType

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "See what there is": (
        "get", "describe", "explain", "events", "timeline", "status", "top", "stats", "ui", "api-resources",
    ),
    "Change objects": (
        "apply", "create", "run", "expose", "edit", "patch", "label",
        "annotate", "delete", "scale", "rollout", "wait", "validate",
    ),
    "Work with containers": (
        "logs", "exec", "attach", "cp", "port-forward", "debug", "restart", "retry", "checkpoint", "restore",
    ),
    "Images": ("pull", "prefetch", "cancel", "inspect", "gc", "set"),
    "Services, names and devices": ("trace", "rules", "diff", "end", "flush", "release", "reset"),
    "The node and this program": (
        "doctor", "health", "cordon", "drain", "uncordon",
        "plan", "what-if", "config", "node-logs", "api", "kubeconfig", "completion", "version",
    ),
})  # fmt: skip

EXAMPLES = """
kepctl annotate pod web note=checked
kepctl annotate svc/web note-
kepctl annotate cm/settings note=other --overwrite -n shop
kepctl api
kepctl api kepd.v1.NodeService/GetNode
kepctl api kepd.v1.ObjectService/List '{"kind":"pods"}'
kepctl api-resources
kepctl api-resources -o wide
kepctl api-resources -o name
kepctl apply web.yaml
kepctl apply -f manifests --dry-run=server
kepctl apply -k overlay --wait
kepctl attach web
kepctl attach web/main
kepctl attach -i web -c main
kepctl cancel pull 7
kepctl --timeout 5s cancel pull 8
kepctl --endpoint /run/kepd/kepd.sock cancel pull 9
kepctl checkpoint web/main
kepctl checkpoint web
kepctl checkpoint -n shop web/main
kepctl completion bash
kepctl completion zsh
kepctl completion fish
kepctl config show --origin
kepctl config check node.yaml
kepctl config set images.maxParallelPulls=5 --dry-run
kepctl config reload
kepctl cordon
kepctl cordon n1
kepctl --timeout 5s cordon
kepctl cp words.txt web:/tmp/words.txt
kepctl cp web:/var/log log
kepctl cp -c main web:/etc/hosts hosts
kepctl create deployment web --image r.test/web:1 --replicas 2
kepctl create configmap settings --from-literal color=blue
kepctl create secret generic login --from-file password=words.txt
kepctl create service nodeport web --tcp 80:8080
kepctl create job work --image r.test/web:1 -- sh -c true
kepctl debug web --image r.test/tools:1
kepctl debug web --image r.test/tools:1 --target main
kepctl debug -it web --image r.test/tools:1 -- sh
kepctl delete pod web
kepctl delete -f web.yaml
kepctl delete pods -l app=web --dry-run
kepctl describe pod web
kepctl describe deploy/web
kepctl describe node
kepctl diff
kepctl diff -o json
kepctl diff -o name
kepctl doctor
kepctl doctor -o json
kepctl doctor -o yaml
kepctl drain
kepctl drain --grace 30
kepctl drain --reason "new disk" --selector app=web --surge
kepctl drain --checkpoint
kepctl edit pod web
kepctl edit deploy/web
kepctl edit cm settings -n shop
kepctl end connections web --dry-run
kepctl end connections shop/web
kepctl end connections web --to 10.0.0.9:80
kepctl events
kepctl events --for pod/web
kepctl events --types Warning -w
kepctl exec web -- ls /
kepctl exec -it web -- sh
kepctl exec web -c main -- env
kepctl explain pod web
kepctl explain route web
kepctl explain pull r.test/web:1
kepctl explain deployment web
kepctl explain dns web --from web
kepctl explain eviction
kepctl explain outage
kepctl explain hints web
kepctl explain spread web
kepctl explain daemonset agent
kepctl explain job work
kepctl explain claim gpu
kepctl explain cdi r.test/gpu=0
kepctl expose deploy/web --port 80 --target-port 8080
kepctl expose pod/web --port 80 --name front
kepctl expose deploy/web --type NodePort --dry-run=client -o yaml
kepctl flush dns
kepctl flush dns web.default.svc.cluster.local
kepctl flush dns --zone example.org
kepctl gc --dry-run
kepctl gc --now
kepctl gc --dry-run -o json
kepctl get pods
kepctl get pods -l app=web -o wide
kepctl get all -n shop
kepctl health
kepctl health -o json
kepctl health -o yaml
kepctl inspect image r.test/web:1
kepctl inspect image r.test/web:1 -o json
kepctl inspect image r.test/web:1 -o yaml
kepctl label pod web tier=front
kepctl label svc/web tier-
kepctl label deploy/web tier=back --overwrite
kepctl logs web
kepctl logs -f web -c main
kepctl logs -l app=web --prefix --tail 5
kepctl node-logs kepd
kepctl node-logs kepd containerd --since 1h
kepctl node-logs kepd -f
kepctl patch svc web -p 'spec: {type: NodePort}'
kepctl patch deploy/web --type merge -p '{"spec": {"replicas": 3}}' --dry-run
kepctl patch cm/settings --type json -p '[{"op": "remove", "path": "/data/color"}]'
kepctl plan stop web
kepctl plan stop -f web.yaml --grace 5
kepctl plan zones --zones a=4,b=2
kepctl port-forward web 8080:80
kepctl port-forward svc/web 8080:80
kepctl port-forward web 80 --address 127.0.0.1
kepctl prefetch r.test/web:1
kepctl prefetch r.test/web:1 r.test/db:2
kepctl prefetch -f images.yaml
kepctl pull r.test/web:1
kepctl pull r.test/web:1 --policy Always
kepctl pull r.test/web:1 r.test/db:2 --no-wait
kepctl release hold 7
kepctl --timeout 5s release hold 8
kepctl release claim 0f2c9a4e-claim --force
kepctl reset device gpu.example.com/n1/gpu-0
kepctl --timeout 1m reset device gpu.example.com/n1/gpu-1
kepctl --endpoint /run/kepd/kepd.sock reset device gpu.example.com/n1/gpu-0
kepctl restart web/main
kepctl restart web
kepctl restart -n shop web
kepctl restore web-1 --as again
kepctl restore web-1 --as twin
kepctl restore web-1 --as twin/main
kepctl retry web
kepctl retry shop/web
kepctl retry -n shop web
kepctl rollout status deploy/web
kepctl rollout restart deploy/web
kepctl rollout restart ds/agent
kepctl rollout history deploy/web
kepctl rollout undo deploy/web --to-revision 2
kepctl rollout pause deploy/web
kepctl rollout resume deploy/web
kepctl rules
kepctl rules web
kepctl rules web --desired
kepctl run web --image r.test/web:1
kepctl run try --rm -it --image r.test/web:1 -- sh
kepctl run web --image r.test/web:1 --dry-run=client -o yaml
kepctl scale deploy/web --replicas 3
kepctl scale deployment web --replicas 0
kepctl scale -n shop deploy/web --replicas 1
kepctl set pull-limit 4
kepctl set pull-limit 2 --registry r.test
kepctl set pull-limit 0
kepctl stats
kepctl stats web/main
kepctl stats --summary
kepctl status
kepctl status -o json
kepctl --endpoint /run/kepd/kepd.sock status
kepctl timeline web
kepctl timeline web -o svg
kepctl timeline -f web.yaml
kepctl top
kepctl top pods --sort-by memory
kepctl top node
kepctl trace web web:80
kepctl trace --from 10.0.0.9 --to 10.96.0.10:80
kepctl trace web web --kernel
kepctl ui
kepctl --endpoint /run/kepd/kepd.sock ui
kepctl --timeout 5s ui
kepctl uncordon
kepctl uncordon n1
kepctl --timeout 5s uncordon
kepctl validate web.yaml
kepctl validate -f manifests
kepctl validate web.yaml other.yaml
kepctl kubeconfig
kepctl kubeconfig --level operate
kepctl --endpoint /run/kepd/kepd.sock kubeconfig --level admin
kepctl version
kepctl version --daemon
kepctl --endpoint /run/kepd/kepd.sock version --daemon
kepctl what-if --from-files cluster.json --drain node-2
kepctl what-if --from-files cluster.json --scale shop/web=6 --lose-zone west --fail-on dark,pending
kepctl what-if --from-files cluster.json --want hints
kepctl what-if --from-files cluster.json --drain node-2 --bandwidth 50Mi --fail-on grace
kepctl what-if --kubeconfig admin.conf --context prod --lose-zone west
kepctl what-if --from-node --scale shop/web=2
kepctl what-if --from-files cluster.json --roll shop/web --image web:2
kepctl wait pod/web --for=condition=Ready
kepctl wait pods -l app=web --for=condition=Ready
kepctl --timeout 1m wait pod/web --for=delete
""".strip().splitlines()


def examples_of(path: str) -> list[str]:
    """Those of a command by all its words; of common flags before it none is a part."""
    words = path.split()
    return [line for line in EXAMPLES if _words(line)[: len(words)] == words]


def _words(line: str) -> list[str]:
    words = line.split()
    return [words[0], *words[3:]] if words[1].startswith("--") else words
