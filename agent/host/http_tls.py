# SPDX-License-Identifier: Apache-2.0
"""The HTTP port by TLS, where certificates are configured (OBS-09)."""

from collections.abc import Callable

from agent.api.http_connections import Wrap
from agent.config.document import Configuration
from agent.model.clock import Clock


def tls_of(configuration: Configuration, clock: Clock) -> Callable[[], Wrap] | None:
    """Reads the files when the port opens. Only who has a certificate pays for what speaks TLS."""
    tls = configuration.api.http_tls
    certificate, private_key, clients = tls.cert_file, tls.key_file, tls.client_ca_file
    if not certificate:
        return None

    def read() -> Wrap:
        from agent.drivers.tls_files.driver import TlsFiles

        return TlsFiles(certificate, private_key, clients, clock.now_s, "api.httpTLS").wrap

    return read
