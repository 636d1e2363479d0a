# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: which are read, how much of them, and what they say. What takes long is done in threads of the
door's own, so that neither other callers nor other planes wait for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
from aiohttp import web

from agent.config.strict_yaml import documents_or_fault, plain
from kepd_door.shape.bounds import MOST_VALUES, check_text, check_value
from kepd_door.shape.protobuf import decoded_protobuf
from kepd_door.shape.statuses import Failure

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
OBJECTS = (JSON, YAML, PROTOBUF)
# What is done at once is less work than a thread.
SHORT = 4096
THREADS = ThreadPoolExecutor(2, "door-body")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def in_thread(work: Callable[Arguments, Result], *args: Arguments.args, **more: Arguments.kwargs) -> Result:
    return await asyncio.get_running_loop().run_in_executor(THREADS, partial(work, *args, **more))


async def body_of(request: web.BaseRequest, types: tuple[str, ...] = OBJECTS, most_values: int = MOST_VALUES) -> Any:  # noqa: ANN401  # JSON
    """None without any. Another type than the API's is refused: a browser sends it without asking whether it may."""
    body = await request.read()
    if not body.strip():
        return None
    # Without a word it is JSON, as an API server has it; a page of another origin has been refused before.
    said = request.content_type if "Content-Type" in request.headers else JSON
    if said not in types:
        raise Failure(415, f"a body of type {said[:100]} is not read; expected {' or '.join(types)}")
    if len(body) < SHORT:
        return decoded(body, said, most_values)
    return await in_thread(decoded, body, said, most_values)


def decoded(body: bytes, content_type: str, most_values: int = MOST_VALUES) -> Any:  # noqa: ANN401  # JSON
    """JSON also where YAML is said, as clients do. Raises Failure."""
    if content_type == PROTOBUF:
        made: Any = decoded_protobuf(body, most_values)
    elif content_type.endswith("yaml") and not body.lstrip().startswith(b"{"):
        trees, findings = documents_or_fault(body, "body", most_values)
        if findings or len(trees) != 1:
            raise Failure(400, str(findings[0]) if findings else "expected one document")
        made = plain(trees[0])
    else:
        check_text(body, most_values)
        try:
            made = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise Failure(400, f"the body is no JSON: {str(error)[:200]}") from error
    check_value(made, most_values)
    return made
