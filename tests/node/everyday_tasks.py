# SPDX-License-Identifier: Apache-2.0
"""What people do on a node every day, as they would say it, with what kepctl shows of it.

Owns: the objects that the tasks work on, and the tasks. Each is one line for a shell; `shows` are patterns that its
output has, each at the begin of a line or behind what comes before. Whoever adds a task adds it to docs/kubectl.md.
"""

from dataclasses import dataclass

VIP = "10.96.0.77"
SETUP = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings}}
data: {{color: blue}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: taste}}
data: {{of: salt}}
---
apiVersion: v1
kind: Secret
metadata: {{name: login}}
stringData: {{password: not-to-be-seen}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: $IMAGE
        imagePullPolicy: IfNotPresent
        command: [sh, -c, "mkdir /w; echo welcome > /w/page; echo web begins; exec httpd -f -p 8080 -h /w"]
        ports: [{{name: http, containerPort: 8080}}]
        readinessProbe: {{tcpSocket: {{port: http}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{clusterIP: {VIP}, selector: {{app: web}}, ports: [{{name: http, port: 80, targetPort: http}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: box, labels: {{app: box}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    env: [{{name: COLOR, valueFrom: {{configMapKeyRef: {{name: settings, key: color}}}}}}]
    command: [sh, -c, "busybox ln -s busybox /bin/tar; for n in 1 2 3; do echo line $n; done; exec sleep 3600"]
  - name: side
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    stdin: true
    command: [sh, -c, "echo side begins; exec cat"]
---
apiVersion: v1
kind: Pod
metadata: {{name: again, labels: {{app: again}}}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{{name: kept, emptyDir: {{}}}}]
  containers:
  - name: main
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    volumeMounts: [{{name: kept, mountPath: /kept}}]
    command: [sh, -c, "if [ ! -e /kept/x ]; then touch /kept/x; echo life 1; exit 1; fi; echo life 2; exec sleep 3600"]
---
apiVersion: batch/v1
kind: Job
metadata: {{name: work}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: main, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo done"]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: broken, labels: {{app: broken}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: "$REGISTRY/none/such:1"}}]
"""
FILES = {
    "one.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {a: b}}\n",
    "many/x.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, labels: {of: many}}, data: {a: b}}\n",
    "many/y.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: y, labels: {of: many}}, data: {a: b}}\n",
    "other.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {color: red}}\n",
    "wrong.yaml": "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: a, imag: i}]}}\n",
    "node.yaml": "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\nnode: {name: n1}\n",
    "words.txt": "some words\n",
    "words.env": "# of a game\nLEVEL=3\n",
}
POD = '--image "$IMAGE" --image-pull-policy IfNotPresent'


@dataclass(frozen=True)
class Task:
    """`page` is how docs/kubectl.md writes it, where the line is more than one would type."""

    name: str
    line: str
    shows: tuple[str, ...]
    code: int = 0
    page: str = ""
    hides: str = ""


def ask(name: str, line: str, *shows: str, code: int = 0, page: str = "", hides: str = "") -> Task:
    return Task(name, f"kepctl {line}", shows, code, page or f"kepctl {line}", hides)


def do(name: str, page: str, line: str, *shows: str, code: int = 0, hides: str = "") -> Task:
    return Task(name, line, shows, code, page, hides)


LOOKING = (
    ask("list the pods", "get pods", r"^NAMESPACE.*NAME.*READY.*STATUS", r"box-n1\s.*2/2.*Running"),
    ask("see the addresses of pods", "get pods -o wide", r"\bIP\b", r"box-n1\s.*\d+\.\d+\.\d+\.\d+"),
    ask("read a pod as JSON", "get pod box -o json", r'"kind": "Pod"', r'"phase": "Running"'),
    ask("read a pod as YAML", "get pod box -o yaml", r"^kind: Pod$", r"^  phase: Running$"),
    ask("get the names alone", "get pods -o name", r"^pod/(default/)?box-n1$"),
    ask("read one field", "get pod box -o jsonpath={.status.phase}", r"\ARunning\n\Z"),
    ask(
        "choose columns",
        "get pods -o custom-columns=NAME:.metadata.name,PHASE:.status.phase",
        r"\ANAME\s+PHASE$",
        r"^box-n1\s+Running$",
    ),
    ask("find pods by a label", "get pods -l app=web", r"^default\s+web-\S+.*Running", hides="box-n1"),
    ask("list pods of all namespaces", "get pods -A", r"^default\s+box-n1"),
    ask("list pods of one namespace", "get pods -n nowhere", r"no pods in namespace nowhere"),
    ask("order a list", "get pods -l app --sort-by .metadata.name", r"again-n1[^\0]*box-n1[^\0]*web-"),
    ask("list several kinds at once", "get svc,cm", r"web.*10\.96\.0\.77", r"settings"),
    ask("name objects of two kinds", "get svc/web cm/settings", r"10\.96\.0\.77", r"settings"),
    do("watch pods", "kepctl get pods -w", "timeout -s INT 2 kepctl get pods -w; true", r"box-n1\s.*Running"),
    ask("list Deployments and Jobs", "get deploy,jobs", r"web\s.*\d/\d", r"work\s.*1/1"),
    ask("list the containers", "get containers", r"side\s.*Running.*box-n1"),
    ask("see all of a pod", "describe pod box", r"^Name:\s+box", r"^Events", r"everyday/web"),
    ask("see all of a Deployment", "describe deploy/web", r"^Name:\s+web", r"Available"),
    ask("see all of a Service", "describe svc web", r"10\.96\.0\.77", r":8080"),
    ask("see all of the node", "describe node", r"n1", r"box"),
    ask(
        "see why a pod does not start",
        "explain pod broken",
        r"^POD default/broken-n1 .*: container main has no image: ",
    ),
    ask("ask a program why a pod waits", "explain pod broken -o json", r'"waitsFor": '),
    ask("see why a pull fails", 'explain pull "$REGISTRY/none/such:1"', r"not present", r"not found|NotFound|back"),
    ask("see what happened to a pod", "events --for pod/box", r"Started.*\bbox", hides="broken"),
    ask("see warnings alone", "events --types Warning", r"Warning.*broken", hides="Normal"),
    ask("see when a pod did what", "timeline box", r"box"),
    ask(
        "read a Secret's keys, not its values", "get secret login -o yaml", r"password", hides="not-to-be-seen|bm90LXRv"
    ),
)
INSIDE = (
    ask("read a log", "logs box", r"\Aline 1\nline 2\nline 3\n\Z"),
    ask("read the end of a log", "logs box --tail 1", r"\Aline 3\n\Z"),
    ask("read a log from a time on", "logs box --since 1h", r"\Aline 1\n"),
    ask("see when lines were written", "logs box --timestamps", r"\A\d{4}-\d\d-\d\dT\S+Z line 1$"),
    ask("read the log of one container", "logs box -c side", r"\Aside begins$"),
    ask("read the logs of all containers", "logs box --all-containers --prefix", r"^\[pod/box-n1/side\] side begins$"),
    ask("read the log before a restart", "logs again -p", r"\Alife \d\n\Z"),
    ask("read logs of many pods", "logs -l app=web --prefix", r"(?s)^\[pod/web-.*web begins.*^\[pod/web-.*web begins$"),
    ask("read the log of a Job", "logs job/work", r"^done$"),
    do("follow a log", "kepctl logs -f box", "timeout -s INT 2 kepctl logs -f box; true", r"line 3"),
    do(
        "follow only what is new",
        "kepctl logs -f box --tail 0",
        "timeout -s INT 2 kepctl logs -f box --tail 0; true",
        r"\A",
        hides="line",
    ),
    ask("run a command in a container", "exec box -- sh -c 'echo $COLOR; exit 7'", r"\Ablue\n\Z", code=7),
    do(
        "open a shell in a container",
        "kepctl exec -it box -- sh",
        "echo 'echo at $HOSTNAME; exit' | kepctl exec -i box -- sh",
        r"^at ",
    ),
    do(
        "attach to a container",
        "kepctl attach -i box/side",
        # It ends when nobody reads what it shows, and is fed until then.
        "while echo a word; do sleep 0.2; done | timeout 60 kepctl attach -i box/side | grep -m 1 word",
        r"a word",
    ),
    do(
        "copy a file into a container",
        "kepctl cp words.txt box:/tmp/words.txt",
        # The lab's runtime cannot end a command's input, and busybox's tar reads on after the end of an archive.
        "timeout 60 kepctl cp words.txt box:/tmp/words.txt & "
        "until kepctl exec box -- grep words /tmp/words.txt 2>/dev/null; do sleep 0.2; done; kill $! || true",
        r"some words",
    ),
    do(
        "copy a file out of a container",
        "kepctl cp box:/tmp/out out",
        "kepctl exec box -- sh -c 'echo out > /tmp/out' && kepctl cp box:/tmp/out ./out && cat ./out",
        r"^out$",
    ),
    do(
        "reach a Service from here",
        "kepctl port-forward svc/web 18080:80",
        "kepctl port-forward svc/web 18080:80 & reach http://127.0.0.1:18080/page; kill $!; true",
        r"welcome",
    ),
)
CHANGING = (
    do(
        "apply a file",
        "kepctl apply -f one.yaml",
        "kepctl apply -f one.yaml && kepctl apply -f one.yaml",
        r"configmap/default/one (created|unchanged)",
        r"configmap/default/one unchanged",
    ),
    ask("apply a directory", "apply -f many", r"configmap/default/x ", r"configmap/default/y "),
    do("apply what another program wrote", "kepctl apply -f - < one.yaml", "kepctl apply -f - < one.yaml", r"/one "),
    ask(
        "see what would change",
        "apply -f other.yaml --dry-run=server",
        r"settings changed \(dry run\)|settings configured",
        r"^-.*blue",
        r"^\+.*red",
    ),
    ask("check manifests", "validate wrong.yaml", r'wrong\.yaml:1: .*imag.*did you mean "image"', code=1),
    do(
        "change an object in an editor",
        "kepctl edit cm taste",
        "EDITOR='sed -i s/salt/sugar/' kepctl edit cm taste && kepctl get cm taste -o jsonpath={.data.of}",
        r"configmap/default/taste configured",
        r"^sugar$",
    ),
    ask(
        "make a ConfigMap",
        "create configmap made --from-literal=a=b --from-file=words.txt --from-env-file=words.env",
        r"configmap/default/made created",
    ),
    ask("make a Secret", "create secret generic made --from-literal=p=not-to-be-seen", r"created", hides="not-to-be"),
    ask(
        "make a Secret of a certificate",
        "create secret tls cert --cert words.txt --key words.txt",
        r"secret/default/cert created",
    ),
    ask(
        "make a Secret of a registry's login",
        "create secret docker-registry reg --docker-server r.test --docker-username u --docker-password p",
        r"created",
    ),
    ask(
        "get a manifest to begin with", "run x --image web:1 --dry-run=client -o yaml", r"^kind: Pod$", r"image: web:1"
    ),
    do(
        "run an image",
        "kepctl run quick --image IMAGE",
        f"kepctl run quick {POD} && kepctl wait pod/quick --for=condition=Ready",
        r"pod/default/quick created",
        r"condition met",
    ),
    do(
        "try something and throw it away",
        "kepctl run try --rm -it --image IMAGE -- sh",
        f"echo 'echo $((40+2)); exit' | kepctl run try --rm -i --restart Never {POD} --command -- sh",
        r"^42$",
        r"pod default/try ends",
    ),
    ask("wait until pods are ready", "wait --for=condition=Ready pod -l app=web", r"(?s)condition met.*condition met"),
    ask("wait for a field", "wait pod/box --for=jsonpath={.status.phase}=Running", r"condition met"),
    ask("give up waiting", "--timeout 1s wait broken --for=condition=Ready", r"does not meet", code=7),
    ask("scale a Deployment", "scale deploy/web --replicas 3", r"deployment/default/web"),
    ask("follow a change", "rollout status deploy/web", r"successfully rolled out"),
    do(
        "restart a Deployment",
        "kepctl rollout restart deploy/web",
        "kepctl rollout restart deploy/web && kepctl rollout status deploy/web",
        r"successfully rolled out",
    ),
    ask("restart a container", "restart again", r"container/again-n1/main restarts"),
    do(
        "delete a pod and wait",
        "kepctl delete pod quick --wait",
        f"kepctl run gone {POD} && kepctl delete pod gone --wait && kepctl get pod gone",
        r"gone-n1 ends",
        r'no pod "gone"',
        code=3,
    ),
    do(
        "delete what a file has",
        "kepctl delete -f one.yaml",
        "kepctl apply -f one.yaml && kepctl delete -f one.yaml",
        r"configmap/default/one deleted",
    ),
    do(
        "delete by a label",
        "kepctl delete cm -l of=many",
        "kepctl apply -f many && kepctl delete cm -l of=many",
        r"configmap/default/x deleted",
        r"configmap/default/y deleted",
        hides="settings deleted",
    ),
    ask("see what a delete would take", "delete pods --all --dry-run", r"pod/default/box-n1 ends \(dry run\)"),
)
NODE = (
    do("pull an image", "kepctl pull IMAGE", 'kepctl pull "$OTHER"', r"everyday/other"),
    ask("list the images", "get images", r"everyday/web"),
    do(
        "see what an image has",
        "kepctl inspect image IMAGE",
        'kepctl inspect image "$IMAGE"',
        r"everyday/web",
        r"sha256:",
    ),
    ask("see which images would go", "gc --dry-run", r"."),
    ask("see how the node is", "status", r"^node\s+n1", r"^runtime\s+containerd", r"pods\s+(ready|degraded)"),
    do("check that all is well", "kepctl health", "kepctl health; true", r"^ok +services( |$)", r"^ok +pods( |$)"),
    do("see what should be changed on the node", "kepctl doctor", "kepctl doctor; true", r"SUBJECT|nothing to change"),
    ask("see the configuration", "config show --origin", r"^node\.name: \"n1\"\s+# "),
    ask("check a configuration", "config check node.yaml", r"the configuration is valid"),
    ask("follow a packet", f"trace --from 10.0.0.9 --to {VIP}:80", r"=> service/\S+: dnat to one of \S+:8080"),
    ask("see where a Service leads", "explain route default/web", r":8080"),
    ask("compare the kernel with the plan", "diff", r"."),
    ask("set up completion", "completion bash", r"complete .*kepctl"),
    do(
        "complete a name",
        "kepctl describe pod bo⇥",
        'COMP_WORDS="kepctl --endpoint $SOCKET describe pod/bo" COMP_CWORD=4 _KEPCTL_COMPLETE=bash_complete kepctl',
        r"pod/box",
    ),
)
EMPTYING = (
    ask("empty the node", "drain", r"pod/default/box-n1 ended"),
    do(
        "take pods again",
        "kepctl uncordon",
        "kepctl uncordon && kepctl --timeout 30s wait box --for=condition=Ready",
        r"the node takes pods again",
        r"pod/default/box-n1 begins anew",
        r"condition met",
    ),
)
TASKS = (*LOOKING, *INSIDE, *CHANGING, *NODE)
"""In any order; those that follow go one after the other, and harm the others."""
