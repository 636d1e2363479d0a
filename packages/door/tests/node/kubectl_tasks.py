# SPDX-License-Identifier: Apache-2.0
"""What people do with kubectl every day, in this order; each is one line for a shell, with what it shows."""

from dataclasses import dataclass

FILES = {
    "mine.json": '{"env": [{"name": "WHOSE", "value": "my own"}], "securityContext": {"runAsUser": 7}}',
    "web.yaml": """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: $IMAGE
        imagePullPolicy: IfNotPresent
        command: [sh, -c, "mkdir /w; echo welcome > /w/page; echo web begins; exec httpd -f -p 8080 -h /w"]
        env:
        - {name: KEPT, value: kept}
        - {name: SECRET, value: not-for-readers}
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.77, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {password: not-to-be-seen}
---
apiVersion: v1
kind: Pod
metadata: {name: box, labels: {app: box}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "busybox ln -s busybox /bin/tar; for n in 1 2 3; do echo line $n; done; exec sleep 3600"]
""",
    "bad.yaml": """
apiVersion: v1
kind: Pod
metadata: {name: bad}
spec: {containers: [{name: main, imge: x}]}
""",
    "each.yaml": """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: each}
spec:
  selector: {matchLabels: {app: each}}
  template:
    metadata: {labels: {app: each}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "3600"]}]
""",
    "store.yaml": """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store, labels: {app: store}}
spec:
  serviceName: store
  selector: {matchLabels: {app: store}}
  template:
    metadata: {labels: {app: store}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "3600"]}]
""",
    "closed.yaml": """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: none}}, policyTypes: [Ingress]}
""",
    "page": "from the file",
}


@dataclass(frozen=True)
class Task:
    """`hides`: what must not be in it; `since`: the first version of kubectl, 1.N, that can do it."""

    line: str
    shows: tuple[str, ...] = ()
    code: int = 0
    hides: str = ""
    since: int = 0


TASKS = (
    Task("kubectl version", (r"Server Version.*1\.36",)),
    Task("kubectl api-resources", (r"^pulls .*kepd.dev/v1 .*Pull$", r"^deployments +deploy")),
    Task("kubectl explain pod.spec.containers.image", ("KIND: +Pod", "FIELD: image <string>"), since=27),
    Task("kubectl get all", (r"\A.*\nservice/kubernetes .*\n\Z",)),
    Task("kubectl diff -f web.yaml", (r"^\+kind: Deployment",), code=1),
    Task("kubectl apply -f web.yaml --dry-run=server", (r"pod/box created \(server dry run\)",)),
    Task("kubectl get pods", ("No resources found",)),
    Task("kubectl apply -f web.yaml", ("deployment.apps/web created", "pod/box created", "secret/login created")),
    Task("kubectl rollout status deploy/web --timeout=30s", ("successfully rolled out",)),
    Task("kubectl wait pod/box --for=condition=Ready --timeout=30s", ("pod/box condition met",)),
    # Of a Secret with texts kubectl says "configured" each time, in a cluster too: a server keeps them as data.
    Task(
        "kubectl apply -f web.yaml", ("deployment.apps/web unchanged", "pod/box unchanged", "secret/login configured")
    ),
    Task("kubectl diff -f web.yaml"),
    Task("kubectl get pods -o wide", (r"^NAME +READY +STATUS", r"^box-n1 +1/1 +Running")),
    Task("kubectl get pods -A", (r"^default +box-n1",)),
    Task("kubectl get pods -l app=box --show-labels", (r"app=box$",), hides="web-"),
    Task("kubectl get pod box -o jsonpath='{.status.phase}'", ("^Running$",)),
    Task("kubectl get pods --field-selector=metadata.name=box -o name", ("^pod/box$",)),
    Task("kubectl get deploy,svc,cm", (r"^deployment.apps/web +2/2", "^service/web", "^configmap/settings")),
    Task("kubectl get svc web -o jsonpath='{.spec.clusterIP}'", ("10.96.0.77",)),
    Task("kubectl get endpointslices", (r"web-ipv4|web",)),
    Task("kubectl get secret login -o jsonpath='{.data.password}' | base64 -d", ("not-to-be-seen",)),
    Task("kubectl --kubeconfig read get secret login -o yaml", ("password: ",), hides="not-to-be-seen|bm90LXRv"),
    Task("kubectl --kubeconfig read get deploy web -o yaml", ("name: SECRET",), hides="not-for-readers"),
    Task("kubectl --kubeconfig read delete pod box", ("needs level operate", "Forbidden"), code=1),
    Task("kubectl --kubeconfig read exec box -- true", ("needs level operate",), code=1),
    Task("kubectl --kubeconfig read get nodes", (r"^n1 ",)),
    Task("kubectl get nodes -o jsonpath='{.items[0].status.conditions[-1:].type}'", ("Ready",)),
    Task("kubectl describe pod box", (r"^Name: +box", "Running")),
    Task("kubectl describe pod box", (r"^  Normal +Started",)),
    Task("kubectl events --for pod/box", ("Started",), since=26),
    Task("kubectl get pod box -o yaml >box.yaml && kubectl replace -f box.yaml", ("pod/box replaced",)),
    Task("kubectl get pod box -o jsonpath='{.status.phase} {..restartCount}'", ("Running 0",)),
    Task("kubectl taint node n1 a=b:NoSchedule", ("is invalid",), code=1),
    Task("kubectl describe node n1", (r"^Name: +n1",)),
    Task("kubectl describe svc web", (r"^IP: +10.96.0.77",)),
    Task("kubectl logs box", ("^line 1$", "^line 3$")),
    Task("kubectl logs box --tail=1", ("^line 3$",), hides="line 2"),
    Task("timeout 5 kubectl logs -f box", ("^line 3$",), code=124),
    Task(
        "kubectl run mute --image=$IMAGE --restart=Never -- sleep 3600 && kubectl wait pod/mute --for=condition=Ready"
    ),
    Task('timeout 5 curl -sSk -o /dev/null -D- -H "Authorization: Bearer $TOKEN" $LOG', ("200 OK",), code=124),
    Task("kubectl delete pod mute --now", ("deleted",)),
    Task("kubectl logs deploy/web", ("web begins",)),
    Task("kubectl exec box -- echo from inside", ("^from inside$",)),
    Task("echo through | kubectl exec -i box -- cat", ("^through$",)),
    Task("kubectl exec box -- sh -c 'exit 7'", ("exit code 7",), code=7),
    Task("kubectl cp page box:/tmp/page && kubectl exec box -- cat /tmp/page", ("from the file",)),
    Task("kubectl cp box:/tmp/page fetched >/dev/null && cat fetched", ("from the file",)),
    Task(
        "kubectl port-forward svc/web 18080:80 >/dev/null 2>&1 & p=$!; ./reach http://127.0.0.1:18080/page; kill $p",
        ("welcome",),
    ),
    Task("kubectl debug box --image=$IMAGE -c probe --profile=general -q -- sh -c 'echo looked; sleep 60'", since=27),
    Task("timeout 30 sh -c 'until kubectl logs box -c probe | grep looked; do sleep 0.2; done'", since=27),
    Task(
        "kubectl debug box --image=$IMAGE -c own --custom=mine.json -q -- sh -c 'echo $WHOSE $(id -u); sleep 60'",
        since=32,
    ),
    Task("timeout 30 sh -c 'until kubectl logs box -c own | grep \"^my own 7$\"; do sleep 0.2; done'", since=32),
    Task("kubectl get --raw /pods", ('"name":"box-n1"',)),
    Task("kubectl get --raw /containerLogs/default/box/main", ("^line 3$",)),
    Task("kubectl get --raw /configz", ('"kepdconfig":', '"maxParallelPulls"')),
    Task("kubectl top pods", (r"^box-n1 +\d+m",)),
    Task("kubectl top nodes", (r"^n1 ",)),
    Task("kubectl get events", ("Started",)),
    Task("kubectl get pulls", ("door/web",)),
    Task("kubectl get images,planes", ("^plane.kepd.dev/pods +ready",)),
    Task("kubectl auth can-i delete pods", ("^yes",)),
    Task("kubectl --kubeconfig read auth can-i delete pods", ("^no",), code=1),
    Task("kubectl auth whoami", ("kepd:operate",), since=28),
    Task("kubectl scale deploy/web --replicas=3", ("scaled",)),
    Task(
        "kubectl wait deploy/web --for=jsonpath='{.status.readyReplicas}'=3 --timeout=30s", ("condition met",), since=23
    ),
    Task("kubectl set env deploy/web X=Y", ("env updated",)),
    Task("kubectl rollout restart deploy/web", ("restarted",)),
    Task("kubectl rollout status deploy/web --timeout=30s", ("successfully rolled out",)),
    Task("kubectl rollout history deploy/web", ("^REVISION +CHANGE-CAUSE", "^3 +<none>")),
    Task("kubectl rollout undo deploy/web --to-revision=1", ("rolled back",)),
    Task("kubectl rollout status deploy/web --timeout=30s", ("successfully rolled out",)),
    Task("kubectl exec deploy/web -- env", ("^SECRET=not-for-readers", "^KEPT=kept"), hides="X=Y"),
    Task("kubectl rollout undo deploy/web && kubectl rollout status deploy/web --timeout=30s", ("rolled back",)),
    Task("kubectl get rs", (r"^web-\S+ +3 +3 +3",)),
    Task("kubectl rollout pause deploy/web && kubectl set env deploy/web Z=1", ("paused",)),
    Task("kubectl get deploy web", (r"^web +3/3 +0 +3",)),
    Task("kubectl set env deploy/web Z- && kubectl rollout resume deploy/web", ("resumed",)),
    Task("kubectl apply -f store.yaml && kubectl rollout status sts/store --timeout=30s", ("complete|rolled out",)),
    Task("kubectl get sts,pods -l app=store", (r"^pod/store-0 +1/1",)),
    Task("kubectl rollout restart sts/store && kubectl rollout status sts/store --timeout=30s", ("complete|rolled",)),
    Task("kubectl rollout history sts/store && kubectl rollout undo sts/store", ("^2 ", "rolled back")),
    Task("kubectl scale sts/store --replicas=0 && kubectl get controllerrevisions", ("scaled", "^store-")),
    Task("kubectl create pdb guard --selector=app=web --min-available=3", ("created",)),
    Task("kubectl get pdb", (r"^guard +3 +N/A +0 ",)),
    Task(
        "kubectl drain n1 --pod-selector=app=web --timeout=3s --ignore-daemonsets --force",
        ("violate the pod's disruption budget",),
        code=1,
    ),
    Task("kubectl uncordon n1 && kubectl get deploy web", (r"^web +3/3 ",)),
    Task("kubectl delete pdb guard && kubectl delete -f store.yaml --timeout=30s", ("deleted",)),
    Task("kubectl apply -f closed.yaml && kubectl get netpol", (r"^closed +app=none ",)),
    Task("kubectl describe netpol closed && kubectl delete netpol closed", ("Policy Types: +Ingress", "deleted")),
    Task("kubectl label cm settings tier=one && kubectl get cm -l tier=one", ("^settings",)),
    Task("kubectl annotate cm settings note=kept", ("annotated",)),
    Task("sed -i '/SECRET/d' web.yaml && kubectl apply -f web.yaml", ("deployment.apps/web configured",)),
    Task(
        "kubectl get deploy web -o jsonpath='{..containers[0].env}'",
        (r'"name":"KEPT".*"name":"X"',),
        hides="SECRET",
    ),
    Task("kubectl rollout status deploy/web --timeout=30s", ("successfully rolled out",)),
    Task('kubectl patch cm settings -p \'{"data":{"taste":"salt"}}\'', ("patched",)),
    Task('kubectl patch cm settings --type=json -p \'[{"op":"remove","path":"/data/taste"}]\'', ("patched",)),
    Task("kubectl get cm settings -o jsonpath='{.data}'", ('{"color":"blue"}',)),
    Task("EDITOR='sed -i s/blue/green/' kubectl edit cm settings", ("edited",)),
    Task("kubectl apply --server-side --force-conflicts -f web.yaml", ("pod/box serverside-applied",)),
    Task("kubectl get pod box -o jsonpath='{.status.containerStatuses[0].restartCount}'", ("^0$",)),
    Task("kubectl create configmap made --from-literal=a=b", ("created",)),
    Task("kubectl create configmap made --from-literal=a=b", ("already exists",), code=1),
    Task("kubectl create secret generic made --from-literal=a=b", ("created",)),
    Task("kubectl create deployment made --image=$IMAGE -- sleep 3600", ("created",)),
    Task("kubectl create job made --image=$IMAGE -- echo ran", ("created",)),
    Task("kubectl wait job/made --for=condition=Complete --timeout=30s", ("condition met",)),
    Task("kubectl logs job/made", ("^ran$",)),
    Task("kubectl create cronjob tidy --image=$IMAGE --schedule='30 4 * * *' -- echo ran", ("created",)),
    Task("kubectl get cj", (r"^tidy +30 4 \* \* \* +\S+ +False +0 +<none>",)),
    Task("kubectl create job once --from=cronjob/tidy", ("created",)),
    Task("kubectl wait job/once --for=condition=Complete --timeout=30s && kubectl logs job/once", ("^ran$",)),
    Task("kubectl explain cronjob.spec.timeZone", ("FIELD: timeZone <string>",), since=27),
    Task("kubectl delete cj/tidy job/once", ('"tidy" deleted', '"once" deleted')),
    Task("kubectl expose deployment made --port=80", ("exposed",)),
    Task("kubectl apply -f each.yaml && kubectl rollout status ds/each --timeout=30s", ("successfully rolled out",)),
    Task("kubectl rollout restart ds/each && kubectl rollout status ds/each --timeout=30s", ("successfully",)),
    Task("kubectl apply -f each.yaml && kubectl diff -f each.yaml && kubectl delete -f each.yaml", ("deleted",)),
    Task("kubectl create ns other", ("namespace/other created",)),
    Task("kubectl run -n other once --image=$IMAGE --restart=Never -- echo done", ("created",)),
    Task("kubectl wait -n other pod/once --for=jsonpath='{.status.phase}'=Succeeded --timeout=30s", ("met",), since=23),
    Task("kubectl get ns", ("^other",)),
    Task("kubectl apply -f bad.yaml", ("imge",), code=1),
    Task("kubectl get pod nosuch", ('pods "nosuch" not found',), code=1),
    Task("kubectl delete -n other pod once --now", ("deleted",)),
    Task("kubectl cordon n1 && kubectl get nodes", ("SchedulingDisabled",)),
    Task(
        "kubectl drain n1 --ignore-daemonsets --force --delete-emptydir-data --grace-period=1",
        ("(evicting pod default/|pod/)web-",),
    ),
    Task("kubectl get pods -l app=box", ("No resources found",)),
    Task("kubectl uncordon n1", ("uncordoned",)),
    Task("kubectl apply -f web.yaml", ("pod/box created",)),
    Task("kubectl delete deploy,job,cm,secret,svc made --timeout=30s", ('configmap "made" deleted',)),
    Task("kubectl delete -f web.yaml --timeout=30s", ('pod "box" deleted',)),
    Task("kubectl wait pods --all --for=delete --timeout=30s && kubectl get all", (r"^service/kubernetes ",)),
)
