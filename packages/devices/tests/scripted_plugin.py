# SPDX-License-Identifier: Apache-2.0
"""A device plugin as a process of its own that does what a script says, call by call.

python -m packages.devices.tests.scripted_plugin FOLDER JSON: serves FOLDER/ENDPOINT, registers at FOLDER/kubelet.sock,
writes each call as a line into FOLDER/ENDPOINT.calls. `lists` are the lists that it sends,
each when `next` has another byte.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from agent.wire.kubelet import device_plugin_v1beta1_pb2 as pb


class Script:
    def __init__(self, folder: Path, given: dict[str, Any]) -> None:
        self.given = given
        self.endpoint = given.get("endpoint", "gpu.sock")
        self.calls = folder / f"{self.endpoint}.calls"
        self.next = folder / f"{self.endpoint}.next"

    def note(self, text: str) -> None:
        with self.calls.open("a") as out:
            out.write(f"{text}\n")

    def options(self, _request: Any, _context: Any) -> Any:
        return pb.DevicePluginOptions(
            pre_start_required="pre_start" in self.given, get_preferred_allocation_available="preferred" in self.given
        )

    def list_and_watch(self, _request: Any, _context: Any) -> Iterator[Any]:
        for place, listed in enumerate(self.given.get("lists", [{"gpu-0": "Healthy", "gpu-1": "Healthy"}])):
            while place and (not self.next.exists() or len(self.next.read_text()) < place):
                time.sleep(0.02)
            if listed == "end":
                return
            if listed == "tiny":
                yield pb.ListAndWatchResponse.FromString(b"\x0a\x00" * 2_000_000)
                continue
            devices = [pb.Device(ID=name, health=health) for name, health in listed.items()]
            if "flood" in self.given:
                devices += [pb.Device(ID=f"flood-{number}", health="Healthy") for number in range(10_000)]
            yield pb.ListAndWatchResponse(devices=devices)
        for number in range(self.given.get("burst", 0)):
            yield pb.ListAndWatchResponse(devices=[pb.Device(ID=f"burst-{number}", health="Healthy")])
        while "chatter" in self.given:
            yield pb.ListAndWatchResponse(devices=[pb.Device(ID="gpu-0", health="Healthy")])
        while True:
            time.sleep(60)

    def preferred(self, request: Any, _context: Any) -> Any:
        one = request.container_requests[0]
        self.note(f"preferred {' '.join(one.available_deviceIDs)}")
        found = pb.ContainerPreferredAllocationResponse(deviceIDs=self.given["preferred"])
        return pb.PreferredAllocationResponse(container_responses=[found])

    def allocate(self, request: Any, context: Any) -> Any:
        ids = list(request.container_requests[0].devices_ids)
        self.note(f"allocate {' '.join(ids)}")
        steps = self.given.get("allocate", [])
        act = steps.pop(0) if steps else "ok"
        if act == "hang":
            time.sleep(3600)
        elif act == "die":
            os._exit(1)
        elif act == "fail":
            context.abort(grpc.StatusCode.INTERNAL, "no\x1b power")
        elif act == "nothing":
            return pb.AllocateResponse()
        one = pb.ContainerAllocateResponse(envs={self.given.get("variable", "GPUS"): ",".join(ids)})
        if act == "bad-path":
            one.mounts.add(host_path="../etc", container_path="/etc")
        if act.startswith("mount "):
            one.mounts.add(host_path=act.removeprefix("mount "), container_path="/seen")
        if act.startswith("note "):
            one.annotations[act.removeprefix("note ")] = "x"
        if act == "many":
            for _ in range(5000):
                one.mounts.add()
        if act == "bad-id":
            one.cdi_devices.add(name="gpu0")
        for node in self.given.get("nodes", []):
            one.devices.add(host_path=node, container_path="/dev/gpu", permissions="rw")
        return pb.AllocateResponse(container_responses=[one])

    def pre_start(self, request: Any, context: Any) -> Any:
        self.note(f"pre_start {' '.join(request.devices_ids)}")
        if self.given["pre_start"] == "fail":
            context.abort(grpc.StatusCode.INTERNAL, "not yet")
        return pb.PreStartContainerResponse()


def serve(folder: Path, given: dict[str, Any]) -> None:
    script = Script(folder, given)
    server = grpc.server(ThreadPoolExecutor(8))
    unary = {
        "GetDevicePluginOptions": (script.options, pb.Empty),
        "GetPreferredAllocation": (script.preferred, pb.PreferredAllocationRequest),
        "Allocate": (script.allocate, pb.AllocateRequest),
        "PreStartContainer": (script.pre_start, pb.PreStartContainerRequest),
    }
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            behaviour, request_deserializer=kind.FromString, response_serializer=lambda one: one.SerializeToString()
        )
        for name, (behaviour, kind) in unary.items()
    }
    methods["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
        script.list_and_watch,
        request_deserializer=pb.Empty.FromString,
        response_serializer=lambda one: one.SerializeToString(),
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix://{folder}/{script.endpoint}")
    server.start()
    with grpc.insecure_channel(f"unix://{folder}/kubelet.sock") as channel:
        register = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=pb.RegisterRequest.SerializeToString,
            response_deserializer=pb.Empty.FromString,
        )
        request = pb.RegisterRequest(
            version=given.get("version", "v1beta1"),
            endpoint=given.get("registers", script.endpoint),
            resource_name=given.get("resource", "example.com/gpu"),
        )
        try:
            register(request, wait_for_ready=True, timeout=20)
            script.note("registered")
        except grpc.RpcError as error:
            script.note(f"refused {error.details()}")
    server.wait_for_termination()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(sys.argv[2]))
