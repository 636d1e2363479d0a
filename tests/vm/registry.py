# SPDX-License-Identifier: Apache-2.0
"""A registry of one image, which runs in a machine: `python3 registry.py ARCHIVE PORT`. Reads, and nothing else.

The image is that of the archive with another id: pods that have the archive's would have to show that they may use what
another pod pulled.
"""

import hashlib
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


def put(text: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    Handler.blobs[digest] = text
    return digest


def main(archive: str, port: int) -> None:
    with tarfile.open(archive) as file:
        content = {one.name: found.read() for one in file if (found := file.extractfile(one)) is not None}
    prefix = "blobs/sha256/"
    Handler.blobs = {f"sha256:{name.removeprefix(prefix)}": text for name, text in content.items() if prefix in name}
    manifest = json.loads(Handler.blobs[json.loads(content["index.json"])["manifests"][0]["digest"]])
    settings = json.dumps(json.loads(Handler.blobs[manifest["config"]["digest"]]) | {"author": "tests"}).encode()
    manifest["config"] |= {"digest": put(settings), "size": len(settings)}
    Handler.first = put(json.dumps(manifest).encode())
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
