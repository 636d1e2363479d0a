# SPDX-License-Identifier: Apache-2.0
"""A registry of one image, which runs in a machine: `python3 registry.py ARCHIVE PORT`. Reads, and nothing else."""

import http.server
import json
import sys
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    blobs: dict[str, bytes] = {}  # noqa: RUF012  # of the one registry
    first = ""

    def do_GET(self) -> None:
        last = self.path.rpartition("/")[2]
        digest = last if ":" in last else self.first
        body = b"{}" if self.path == "/v2/" else self.blobs.get(digest, b"")
        self.send_response(200 if body else 404)
        if "/manifests/" in self.path:
            self.send_header("Docker-Content-Digest", digest)
            self.send_header("Content-Type", MANIFEST)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  # as the library calls it


def main(archive: str, port: int) -> None:
    with tarfile.open(archive) as file:
        content = {one.name: found.read() for one in file if (found := file.extractfile(one)) is not None}
    prefix = "blobs/sha256/"
    Handler.blobs = {f"sha256:{name.removeprefix(prefix)}": text for name, text in content.items() if prefix in name}
    Handler.first = json.loads(content["index.json"])["manifests"][0]["digest"]
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
