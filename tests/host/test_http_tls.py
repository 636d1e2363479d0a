# SPDX-License-Identifier: Apache-2.0
"""The HTTP port of a real daemon by TLS (OBS-09)."""

import http.client
import ssl
from pathlib import Path

import pytest

from tests.drivers.kube.certificates import Certificates, make_certificates
from tests.host.process import Kepd

pytestmark = pytest.mark.timeout(60)


def get(port: int, path: str, certificates: Certificates, *, is_known: bool) -> int:
    """The status; 0 while nothing answers by TLS."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if is_known:
        context.load_cert_chain(certificates.client_certificate, certificates.client_key)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def test_a_certificate_that_comes_late_opens_the_port(short_path: Path, free_port: int) -> None:
    """OBS-09: what is wrong until then is in the log, and the rest of the daemon works."""
    pki = short_path / "pki"
    pki.mkdir()
    names = {"CERT_FILE": "server.crt", "KEY_FILE": "server.key", "CLIENT_CA_FILE": "ca.crt"}
    environment = {f"KEPD_API__HTTP_TLS__{key}": str(pki / name) for key, name in names.items()}
    daemon = Kepd(short_path, free_port, **environment)
    with daemon.start("--planes", ""):
        daemon.wait(lambda: "api.httpTLS.certFile: " in daemon.log.read_text(), "the fault to be said")
        certificates = make_certificates(pki)
        daemon.wait(lambda: get(free_port, "/livez", certificates, is_known=False) == 200, "the port to open")

        assert get(free_port, "/metrics", certificates, is_known=False) == 403
        assert get(free_port, "/metrics", certificates, is_known=True) == 200
        assert daemon.get("/livez") == (0, "")
