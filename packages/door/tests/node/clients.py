# SPDX-License-Identifier: Apache-2.0
"""What a program does with a node through the door, in the words of three client libraries: `clients.py NAME IMAGE`.

Runs as a process of its own, in the network of the node; KUBECONFIG is the way in. Each step asserts what came.
"""

import asyncio
import sys
import time
from typing import Any

POD = "from-a-client"


def pod(image: str) -> dict[str, Any]:
    command = ["sh", "-c", "echo begun; exec sleep 3600"]
    container = {"name": "main", "image": image, "command": command, "imagePullPolicy": "IfNotPresent"}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "labels": {"by": "client"}}, "spec": spec}


def config_map(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "default"}, "data": data}


def deployment(image: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pod(image)["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default"},
        "spec": spec,
    }


OWN = {
    "checkpoints": "Checkpoint", "features": "Feature", "filesystems": "Filesystem", "images": "Image",
    "mirrors": "Mirror", "planes": "Plane", "pulls": "Pull", "rules": "Rule", "holds": "Hold",
}  # fmt: skip
LABEL = {"of": "each"}


def of_each_kind(image: str) -> list[dict[str, Any]]:
    """One of each that is written in manifests; none of them runs anything for long."""
    template = {"metadata": {"labels": {"app": "e"}}, "spec": pod(image)["spec"]}
    job = {"metadata": {}, "spec": {**pod(image)["spec"], "restartPolicy": "Never"}}
    chosen = {"selector": {"matchLabels": {"app": "e"}}, "template": template}
    metadata = {"name": "each", "namespace": "default", "labels": LABEL}
    bodies: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}},
        {"apiVersion": "v1", "kind": "Secret", "data": {"a": "Yg=="}},
        {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "10.96.0.90", "ports": [{"port": 80}]}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {**chosen, "replicas": 0}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": chosen},
        {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": False, "template": job}},
    ]
    return [{**one, "metadata": metadata} for one in bodies]


def with_kubernetes(image: str) -> None:
    from kubernetes import client, config, watch
    from kubernetes.client.exceptions import ApiException
    from kubernetes.stream import stream

    config.load_kube_config()
    core, apps = client.CoreV1Api(), client.AppsV1Api()
    assert client.VersionApi().get_code().major == "1"
    assert "pods" in {one.name for one in core.get_api_resources().resources}
    assert core.create_namespaced_config_map("default", config_map(a="b")).data == {"a": "b"}
    try:
        core.create_namespaced_config_map("default", config_map(a="b"))
        raise AssertionError("made twice")
    except ApiException as error:
        assert error.status == 409
    assert core.patch_namespaced_config_map("mine", "default", {"data": {"c": "d"}}).data == {"a": "b", "c": "d"}
    found = core.read_namespaced_config_map("mine", "default")
    found.data = {"only": "this"}
    assert core.replace_namespaced_config_map("mine", "default", found).data == {"only": "this"}
    assert "mine" in [made.metadata.name for made in core.list_namespaced_config_map("default").items]
    core.delete_namespaced_config_map("mine", "default")
    core.create_namespaced_pod("default", pod(image))
    phases = []
    listed = core.list_namespaced_pod("default", label_selector="by=client")
    for event in watch.Watch().stream(
        core.list_namespaced_pod, "default", label_selector="by=client", timeout_seconds=30,
        resource_version=listed.metadata.resource_version,
    ):  # fmt: skip
        phases.append(event["object"].status.phase)
        if phases[-1] == "Running":
            break
    name = core.list_namespaced_pod("default", field_selector=f"metadata.name={POD}").items[0].metadata.name
    assert (name, phases[-1]) == (POD, "Running")
    until(lambda: core.read_namespaced_pod_log(POD, "default") == "begun\n")
    said = stream(
        core.connect_get_namespaced_pod_exec, POD, "default", command=["echo", "hi"],
        stdout=True, stderr=True, stdin=False, tty=False,
    )  # fmt: skip
    assert said == "hi\n", said
    core.delete_namespaced_pod(POD, "default", grace_period_seconds=0)
    apps.create_namespaced_deployment("default", deployment(image))
    apps.patch_namespaced_deployment_scale("d", "default", {"spec": {"replicas": 2}})
    until(lambda: apps.read_namespaced_deployment_status("d", "default").status.ready_replicas == 2)
    assert apps.read_namespaced_deployment_scale("d", "default").spec.replicas == 2
    apps.delete_namespaced_deployment("d", "default")
    planes = client.CustomObjectsApi().list_cluster_custom_object("kepd.dev", "v1", "planes")
    assert {"pods", "services"} <= {one["metadata"]["name"] for one in planes["items"]}
    review = client.V1SelfSubjectAccessReview(spec={"resourceAttributes": {"verb": "delete", "resource": "pods"}})
    assert client.AuthorizationV1Api().create_self_subject_access_review(review).status.allowed
    assert core.list_node().items[0].metadata.name == "n1"
    assert core.list_namespace().items
    from kubernetes.dynamic import DynamicClient
    from kubernetes.dynamic.exceptions import NotFoundError

    dynamic = DynamicClient(core.api_client)
    for made in of_each_kind(image):
        kind = dynamic.resources.get(api_version=made["apiVersion"], kind=made["kind"])
        which = {"name": "each", "namespace": "default"}
        assert kind.create(body=made, namespace="default").metadata.name == "each"
        assert kind.get(**which).kind == made["kind"]
        assert len(kind.get(namespace="default", label_selector="of=each").items) == 1
        assert kind.get(field_selector="metadata.name=each").items[0].metadata.namespace == "default"
        patch = {"metadata": {"labels": {"more": "x"}}}
        changed = kind.patch(**which, body=patch, content_type="application/merge-patch+json")
        assert changed.metadata.labels.more == "x"
        kind.delete(**which)
        try:
            kind.get(**which)
            raise AssertionError("still there")
        except NotFoundError:
            continue
    for name in OWN.values():
        listed = dynamic.resources.get(api_version="kepd.dev/v1", kind=name).get()
        assert listed.kind == f"{name}List"


def with_lightkube(image: str) -> None:
    from lightkube import ApiError, Client, codecs
    from lightkube.generic_resource import create_global_resource
    from lightkube.resources.apps_v1 import Deployment
    from lightkube.resources.core_v1 import ConfigMap, Node, Pod
    from lightkube.types import PatchType

    def made(kind: Any, fields: dict[str, Any]) -> Any:
        return kind.from_dict(fields)

    client = Client(field_manager="light")
    assert client.create(made(ConfigMap, config_map(a="b"))).data == {"a": "b"}
    changed = client.patch(ConfigMap, "mine", {"data": {"c": "d"}}, patch_type=PatchType.MERGE)
    assert changed.data == {"a": "b", "c": "d"}
    assert client.apply(made(ConfigMap, config_map(e="f"))).data["e"] == "f"
    assert client.apply(made(ConfigMap, config_map(g="h"))).data.get("e") is None
    client.delete(ConfigMap, "mine")
    client.create(made(Pod, pod(image)))
    client.wait(Pod, POD, for_conditions=["Ready"])
    until(lambda: list(client.log(POD)) == ["begun\n"])
    assert [one.metadata.name for one in client.list(Pod, labels={"by": "client"})] == [f"{POD}-n1"]
    assert next(iter(client.list(Node))).metadata.name == "n1"
    for event, one in client.watch(Pod, fields={"metadata.name": POD}):
        assert (event, one.metadata.name) == ("ADDED", POD)
        break
    client.delete(Pod, POD)
    client.create(made(Deployment, deployment(image)))
    client.wait(Deployment, "d", for_conditions=["Available"])
    client.delete(Deployment, "d")
    for one in of_each_kind(image):
        given = codecs.from_dict(one)
        kind = type(given)
        assert client.create(given).metadata.name == "each"
        assert client.get(kind, "each").metadata.labels == LABEL
        assert len(list(client.list(kind, labels=LABEL))) == 1
        assert [each.metadata.name for each in client.list(kind, fields={"metadata.name": "each"})] == ["each"]
        changed = client.patch(kind, "each", {"metadata": {"labels": {"more": "x"}}}, patch_type=PatchType.MERGE)
        assert changed.metadata.labels["more"] == "x"
        client.delete(kind, "each")
    for plural, name in OWN.items():
        list(client.list(create_global_resource("kepd.dev", "v1", name, plural)))
    try:
        client.get(Deployment, "d")
        raise AssertionError("still there")
    except ApiError as error:
        assert error.status.code == 404


async def with_kr8s(image: str) -> None:
    import kr8s.asyncio
    from kr8s.asyncio.objects import ConfigMap, Deployment, Pod, object_from_spec

    api = await kr8s.asyncio.api()
    mine = await ConfigMap(config_map(a="b"))
    await mine.create()
    await mine.patch({"data": {"c": "d"}})
    assert mine.raw["data"] == {"a": "b", "c": "d"}
    await mine.delete()
    one = await Pod({**pod(image), "metadata": {"name": POD, "namespace": "default", "labels": {"by": "client"}}})
    await one.create()
    await one.wait("condition=Ready", timeout=30)
    async for line in one.logs(follow=True):
        assert line == "begun"
        break
    assert (await one.exec(["echo", "hi"])).stdout == b"hi\n"
    assert [each.name async for each in api.get("pods", label_selector="by=client")] == [f"{POD}-n1"]
    await one.delete(grace_period=0)
    served = await Deployment(deployment(image))
    await served.create()
    await served.wait("condition=Available", timeout=30)
    await served.scale(2)
    await served.delete()
    assert [each.name async for each in api.get("nodes")] == ["n1"]
    assert "pulls" in {each["name"] for each in await api.api_resources()}
    for given in of_each_kind(image):
        made = await object_from_spec(given, api=api)
        await made.create()
        assert await made.exists()
        found = [each async for each in api.get(made.plural, label_selector=LABEL)]
        assert [each.name for each in found] == ["each"]
        await made.label({"more": "x"})
        await made.refresh()
        assert made.labels["more"] == "x"
        await made.delete()
        assert not await made.exists()
    for plural in OWN:
        assert all([each.name async for each in api.get(f"{plural}.kepd.dev")])


def until(holds: Any) -> None:  # something to call
    limit_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < limit_s
        time.sleep(0.1)


if __name__ == "__main__":
    name, image = sys.argv[1:]
    if name == "kr8s":
        asyncio.run(with_kr8s(image))
    else:
        {"kubernetes": with_kubernetes, "lightkube": with_lightkube}[name](image)
    print("done")
