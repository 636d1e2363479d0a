# SPDX-License-Identifier: Apache-2.0
"""What kepd sends to containerd: no request may end it."""

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from agent.drivers.containerd.driver import Containerd
from agent.model.images.platform import ImagePlatform
from agent.model.images.store import ImageRecord

PLATFORM = ImagePlatform("amd64")
RECORD = ImageRecord("registry/a:1", "sha256:" + "a" * 64, "application/json", 3, {"a": "b"})
CALLS = {
    "version": (),
    "store_roots": (),
    "list_ingests": (),
    "image_records": (),
    "label_image": ("registry/a:1", {"pinned": "yes"}),
    "create_image": (RECORD,),
    "delete_image": ("registry/a:1",),
    "blob_info": ("sha256:1",),
    "create_lease": ("lease", {"a": "b"}),
    "list_leases": (),
    "delete_lease": ("lease",),
    "add_to_lease": ("lease", "ingests", "1"),
    "abort_ingest": ("ref",),
    "end_task": ("container",),
    "list_blobs": ("label",),
    "read_blob": ("sha256:1", 10),
}


class Recording(Containerd):
    """containerd's driver, with nobody at the other end."""

    def __init__(self) -> None:
        super().__init__("unix:///nowhere")
        self.requests: list[Message] = []

    async def _call(self, method: str, request: Message, answer: Any, **_: object) -> Any:
        self.requests.append(request)
        return answer()

    async def _stream(self, method: str, request: Message, answer: Any) -> Any:
        self.requests.append(request)
        for _ in ():
            yield


def is_optional(field: FieldDescriptor) -> bool:
    return field.containing_oneof is not None


def absent(message: Message, path: str = "") -> list[str]:
    """The inner messages that are left out, however deep."""
    found = []
    for field in message.DESCRIPTOR.fields:
        where = f"{path}{message.DESCRIPTOR.name}.{field.name}"
        # Go reads an absent timestamp or mask as none; what is declared optional is asked for.
        if field.type != field.TYPE_MESSAGE or "google.protobuf" in field.message_type.full_name or is_optional(field):
            continue
        if field.is_repeated:
            if not field.message_type.GetOptions().map_entry:
                found += [lost for one in getattr(message, field.name) for lost in absent(one, f"{where}/")]
        elif not message.HasField(field.name):
            found.append(where)
        else:
            found += absent(getattr(message, field.name), f"{where}/")
    return found


@pytest.mark.parametrize("name", sorted(CALLS))
async def test_no_request_leaves_out_an_inner_message(name: str) -> None:
    """PRT-12: containerd 1.7 and later ends in a panic, with all its callers, where one of these is absent."""
    driver = Recording()
    try:
        await getattr(driver, name)(*CALLS[name])
        assert driver.requests
        assert [lost for request in driver.requests for lost in absent(request)] == []
    finally:
        await driver.close()


async def test_a_transfer_names_both_its_ends() -> None:
    driver = Recording()
    try:
        await driver.fetch_content("registry/a:1", PLATFORM, hosts_folder="/etc/none", labels={})
        assert absent(driver.requests[0]) == ["TransferRequest.options"]
    finally:
        await driver.close()


def test_every_call_of_the_driver_is_looked_at() -> None:
    """A new one must be added here."""
    others = {"close", "fetch_content", "store_events", "task_events"}
    assert {name for name in vars(Containerd) if not name.startswith("_")} == set(CALLS) | others
