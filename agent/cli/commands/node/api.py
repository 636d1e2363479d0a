# SPDX-License-Identifier: Apache-2.0
"""`kepctl api`: any method by name with JSON, through reflection; it works with any gRPC server that has it."""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import click
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2

from agent.cli.client import Client, connected, failure
from agent.cli.render import print_data
from agent.cli.session import CommandFailed, Session
from agent.model.exit_codes import NOT_FOUND, USAGE

REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@click.command()
@click.argument("method", required=False)
@click.argument("request_json", metavar="[JSON]", default="{}")
@click.pass_obj
def api(session: Session, method: str | None, request_json: str) -> None:
    """Call METHOD, such as kepd.v1.NodeService/GetNode, with a JSON request. Without METHOD, list all."""
    with connected(session) as daemon:
        reflection = Reflection(daemon, session.timeout_s)
        if method is None:
            for name in reflection.methods():
                click.echo(name)
            return
        found = reflection.find(method.lstrip("/"))
        for answer in _invoke(daemon, found, request_json):
            print_data(_shown(answer, json_format.MessageToDict(answer, descriptor_pool=reflection.pool)), "json")


def _shown(answer: Message, made: dict[str, Any]) -> dict[str, Any]:
    """Objects inside of an answer as they are; in a message they are bytes of JSON."""
    for field, value in answer.ListFields():
        if field.name == "object":
            made["object"] = json.loads(value)
        elif field.name == "objects" and field.message_type is None:
            made["objects"] = [json.loads(each) for each in value]
    return made


def _invoke(daemon: Client, method: MethodDescriptor, request_json: str) -> Iterator[Message]:
    request = GetMessageClass(method.input_type)()
    try:
        json_format.Parse(request_json, request)
    except json_format.ParseError as error:
        raise CommandFailed(f"the request is not a {method.input_type.full_name}: {error}", USAGE) from error
    path = f"{method.containing_service.full_name}/{method.name}"
    answer = GetMessageClass(method.output_type)
    if method.client_streaming and method.server_streaming:
        raise CommandFailed(f"{path} is a conversation, which kepctl api cannot hold", USAGE)
    if method.client_streaming:
        yield daemon.send(path, [request], answer)
    elif method.server_streaming:
        yield from daemon.follow(path, request, answer)
    else:
        yield daemon.call(path, request, answer)


class Reflection:
    def __init__(self, daemon: Client, timeout_s: float) -> None:
        self._daemon = daemon
        self._timeout_s = timeout_s
        self.pool = descriptor_pool.DescriptorPool()
        self._known: set[str] = set()

    def services(self) -> list[str]:
        answer = self._ask(reflection_pb2.ServerReflectionRequest(list_services="*"))
        return sorted(service.name for service in answer.list_services_response.service)

    def methods(self) -> Iterator[str]:
        for service in self.services():
            self._load(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
            for method in self.pool.FindServiceByName(service).methods:
                yield f"{service}/{method.name}"

    def find(self, name: str) -> MethodDescriptor:
        """A method by its name; the package may be left out."""
        service, _, short = name.rpartition("/")
        services = self.services()
        full = next((known for known in services if known in (service, f"kepd.v1.{service}")), None)
        if full is not None:
            self._load(reflection_pb2.ServerReflectionRequest(file_containing_symbol=full))
            found = self.pool.FindServiceByName(full).methods_by_name.get(short)
            if found is not None:
                return found
        close = get_close_matches(name, list(self.methods()), n=1, cutoff=0.5)
        hint = f'; did you mean "{close[0]}"?' if close else "; kepctl api lists all"
        raise CommandFailed(f'no method "{name}"{hint}', NOT_FOUND)

    def _load(self, request: reflection_pb2.ServerReflectionRequest) -> None:
        for raw in self._ask(request).file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            if file.name in self._known:
                continue
            self._known.add(file.name)
            for name in file.dependency:
                if name not in self._known:
                    self._load(reflection_pb2.ServerReflectionRequest(file_by_filename=name))
            self.pool.Add(file)

    def _ask(self, request: reflection_pb2.ServerReflectionRequest) -> reflection_pb2.ServerReflectionResponse:
        call = self._daemon.channel.stream_stream(
            REFLECT,
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        try:
            answer: reflection_pb2.ServerReflectionResponse = next(call(iter([request]), timeout=self._timeout_s))
        except grpc.RpcError as error:
            raise failure(error, self._daemon.path) from error
        return answer
