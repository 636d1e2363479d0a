# SPDX-License-Identifier: Apache-2.0
"""A driver as a process of its own that does what a script says, call by call.

python -m packages.devices.tests.scripted_driver FOLDER JSON: serves FOLDER/NAME.sock, registers at `socket`, writes
each call as a line into FOLDER/NAME.calls. The script: `{"prepare": ["error", …], "unprepare": […]}`; what is not said
is done well. With `cdi`, a directory, a claim has a file there while it is prepared, and each end is a reset, noted
once it is done. With `health`, a list, it tells of its devices: `{NAME: STATUS}` is one message, and a word what
happens then.
`kill` ends the process before it does anything, `kill-done` when all is done and nothing is answered.
"""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from agent.wire.kubelet import dra_health_v1alpha1_pb2 as health_pb2
from agent.wire.kubelet import dra_v1_pb2, dra_v1beta1_pb2
from agent.wire.kubelet import plugin_registration_v1_pb2 as registration

SERVICES = {
    "v1.DRAPlugin": ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", dra_v1_pb2),
    "v1beta1.DRAPlugin": ("k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", dra_v1beta1_pb2),
}


HEALTH = ["v1alpha1.DRAResourceHealth"]


class Script:
    def __init__(self, folder: Path, given: dict[str, Any]) -> None:
        self.name = given["name"]
        self.given = given
        self.endpoint = given.get("endpoint", str(folder / f"{given.get('instance', self.name)}.sock"))
        self.calls = folder / f"{given.get('instance', self.name)}.calls"

    def note(self, text: str) -> None:
        with self.calls.open("a") as out:
            out.write(f"{text}\n")

    def info(self, _request: Any, _context: Any) -> Any:
        return registration.PluginInfo(
            type=self.given.get("type", "DRAPlugin"),
            name=self.name,
            endpoint=self.endpoint,
            supported_versions=self.given.get("versions", ["v1.DRAPlugin", *HEALTH[: "health" in self.given]]),
        )

    def told(self, request: Any, _context: Any) -> Any:
        self.note(f"told {request.plugin_registered} {request.error}".strip())
        return registration.RegistrationStatusResponse()

    def call(self, what: str, pb: Any, request: Any, context: Any) -> Any:
        uids = [one.uid for one in request.claims]
        self.note(f"{what} {' '.join(one.name for one in request.claims)}")
        steps = self.given.get(what, [])
        act = steps.pop(0) if steps else "ok"
        kind = pb.NodePrepareResourcesResponse if what == "prepare" else pb.NodeUnprepareResourcesResponse
        answer = kind()
        if act == "hang":
            time.sleep(3600)
        elif act == "die":
            os._exit(1)
        elif act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif act == "unavailable":
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        elif act == "internal":
            context.abort(grpc.StatusCode.INTERNAL, "broken\x1b[31m")
        for uid in uids if "cdi" in self.given else ():
            self.work(what, Path(self.given["cdi"]) / f"{uid}.json")
        if act == "kill-done":
            os.kill(os.getpid(), signal.SIGKILL)
        for uid in uids if act != "skip" else ():
            answer.claims[uid].error = "no power" if act == "error" else ""
            if what == "prepare" and act != "error":
                self.fill(pb, answer.claims[uid].devices, act)
        if act == "strange":
            answer.claims["another"].error = ""
        return answer

    def health(self, _request: Any, context: Any) -> Any:
        self.note("health")
        acts = self.given["health"]
        while acts and context.is_active():
            act = acts.pop(0)
            if act == "end":
                return
            if act == "die":
                os._exit(1)
            if act == "refuse":
                context.abort(grpc.StatusCode.INTERNAL, "no sensor\x1b[31m")
            if act == "flood":
                yield self.told_health({f"gpu-{number}": "HEALTHY" for number in range(10_000)})
            elif act == "garbage":
                yield self.told_health({"\x1b[31mgpu": "HEALTHY"})
            elif act == "flicker":
                for number in range(self.given.get("times", 5000)):
                    yield self.told_health({"gpu-0": "UNHEALTHY" if number % 2 else "HEALTHY"})
            elif act == "wait":
                while not (self.calls.parent / "go-on").exists():
                    time.sleep(0.02)
                (self.calls.parent / "go-on").unlink()
            else:
                yield self.told_health(act)
            if act in ("flood", "garbage"):
                # Until the other side has hung up.
                time.sleep(0.5)
        while context.is_active():
            time.sleep(0.05)

    def told_health(self, devices: dict[str, str]) -> Any:
        answer = health_pb2.NodeWatchResourcesResponse()
        for name, status in devices.items():
            one = answer.devices.add(
                health=health_pb2.HealthStatus.Value(status), last_updated_time=1,
                health_check_timeout_seconds=self.given.get("timeout", 0), message="too hot\x1b[31m",
            )  # fmt: skip
            one.device.pool_name, one.device.device_name = self.given.get("pool", "here"), name
        return answer

    def work(self, what: str, file: Path) -> None:
        if what == "prepare":
            file.write_text("{}")
        else:
            file.unlink(missing_ok=True)
            self.note("reset")

    def fill(self, pb: Any, devices: Any, act: str) -> None:
        name = "gpu-9" if act == "wrong-device" else self.given.get("device", "gpu-0")
        ids = ["gpu"] if act == "bad-id" else self.given.get("ids", ["example.com/gpu=0"])
        count = 10_000 if act == "flood" else 1
        for number in range(count):
            device = f"flood-{number}" if act == "flood" else name
            devices.append(pb.Device(pool_name=self.given.get("pool", "here"), device_name=device, cdi_device_ids=ids))


def serve(folder: Path, given: dict[str, Any]) -> None:
    script = Script(folder, given)
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", 64 << 20)])
    for service, pb in SERVICES.values():
        methods = {
            f"Node{what.capitalize()}Resources": grpc.unary_unary_rpc_method_handler(
                lambda request, context, what=what, pb=pb: script.call(what, pb, request, context),
                request_deserializer=getattr(pb, f"Node{what.capitalize()}ResourcesRequest").FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for what in ("prepare", "unprepare")
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    if "health" in given:
        stream = grpc.unary_stream_rpc_method_handler(
            script.health,
            request_deserializer=health_pb2.NodeWatchResourcesRequest.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        handler = grpc.method_handlers_generic_handler("v1alpha1.DRAResourceHealth", {"NodeWatchResources": stream})
        server.add_generic_rpc_handlers((handler,))
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            behaviour,
            request_deserializer=kind.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for name, behaviour, kind in (
            ("GetInfo", script.info, registration.InfoRequest),
            ("NotifyRegistrationStatus", script.told, registration.RegistrationStatus),
        )
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pluginregistration.Registration", methods),))
    if script.endpoint:
        server.add_insecure_port(f"unix://{script.endpoint}")
    server.add_insecure_port(f"unix://{given['socket']}")
    server.start()
    script.note("serves")
    server.wait_for_termination()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(sys.argv[2]))
