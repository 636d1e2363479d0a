# SPDX-License-Identifier: Apache-2.0
"""What the images plane leaves in containerd: leases of its own, and content that was fetched ahead.

containerd's collector frees what no other lease or image uses. Never: touches an image that pods or people have.
"""

from agent.config.document import Configuration
from agent.drivers.containerd.driver import Containerd
from agent.images.attach.content_fetch import CONTENT_NAMESPACE
from agent.images.run.image_disks import OUR_LEASES
from agent.kit.plane_lock import held_plane_lock
from agent.model.runtime.error import RuntimeCallFailed


async def clean_images(configuration: Configuration, *, is_dry: bool) -> list[str]:
    runtime = configuration.runtime
    with held_plane_lock("images", runtime.endpoint, configuration.node.run_directory):
        shared = Containerd(runtime.endpoint, runtime.containerd_namespace)
        content = Containerd(runtime.endpoint, CONTENT_NAMESPACE)
        try:
            return [
                *await _leases(shared, runtime.containerd_namespace, is_dry=is_dry),
                *await _leases(content, CONTENT_NAMESPACE, is_dry=is_dry),
                *await _images(content, is_dry=is_dry),
            ]
        except RuntimeCallFailed as error:
            raise OSError(f"{runtime.endpoint}: {error}") from error
        finally:
            await shared.close()
            await content.close()


async def _leases(store: Containerd, namespace: str, *, is_dry: bool) -> list[str]:
    found = sorted(name for name in await store.list_leases() if name.startswith(OUR_LEASES))
    for name in found:
        if not is_dry:
            await store.delete_lease(name)
    return [f"lease {name} of containerd's namespace {namespace}" for name in found]


async def _images(store: Containerd, *, is_dry: bool) -> list[str]:
    found = sorted(record.name for record in await store.image_records())
    for name in found:
        if not is_dry:
            await store.delete_image(name)
    return [f"content of {name}, fetched ahead" for name in found]
