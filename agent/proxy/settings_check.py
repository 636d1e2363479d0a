# SPDX-License-Identifier: Apache-2.0
"""Values of `proxy.` that are wrong only together with others."""

from collections.abc import Iterator

from agent.config.document import Configuration
from agent.model.finding import Finding


def proxy_faults(configuration: Configuration) -> Iterator[Finding]:
    proxy, runtime = configuration.proxy, configuration.runtime
    if not proxy.enabled:
        return
    if runtime.image_endpoint not in ("", runtime.endpoint):
        text = f"{runtime.image_endpoint}: the proxy serves images and pods from one runtime.endpoint; remove this key"
        yield Finding("", "runtime.imageEndpoint", text)
    if proxy.socket and runtime.endpoint == f"unix://{proxy.socket}":
        text = f"{proxy.socket} is the runtime's own socket; expected a path of kepd's own, or nothing"
        yield Finding("", "proxy.socket", text)
    if proxy.link and proxy.link == proxy.socket:
        text = f"{proxy.link} is proxy.socket itself; expected another path, which will lead there"
        yield Finding("", "proxy.link", text)
