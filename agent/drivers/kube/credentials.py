# SPDX-License-Identifier: Apache-2.0
"""What a request shows to the server, now.

It looks again after a change of a file, a time of expiry, or a server that said 401. Several requests that find the
credentials stale cause one renewal.
"""

import asyncio
from pathlib import Path

import msgspec
from msgspec.structs import replace

from agent.drivers.kube.access import NO_SECRET, ExecCommand, KubeAccess, Pem, Secret
from agent.drivers.kube.errors import AccessInvalid, CredentialsFailed
from agent.drivers.kube.exec_plugin import Issued, run_plugin
from agent.drivers.kube.kubeconfig import load_kubeconfig
from agent.drivers.kube.tls import ClientIdentity, file_stamp
from agent.model.clock import Clock

MAX_TOKEN_BYTES = 1 << 16
RENEWAL_MARGIN_S = 10.0


class Presented(msgspec.Struct, frozen=True):
    token: Secret = NO_SECRET
    identity: ClientIdentity | None = None


class Credentials:
    """Those of one user. The client owns the only one."""

    def __init__(self, access: KubeAccess, clock: Clock, exec_deadline_s: float = 30.0) -> None:
        self._access = access
        self._clock = clock
        self._exec_deadline_s = exec_deadline_s
        self._file = TokenFile(access.user.token_file) if access.user.token_file else None
        self._issued: Issued | None = None
        self._renewing = asyncio.Lock()

    async def current(self) -> Presented:
        """What to show. Raises CredentialsFailed."""
        user = self._access.user
        identity = ClientIdentity(user.certificate, user.key) if user.certificate and user.key else None
        if self._file:
            return Presented(self._file.read(), identity)
        if user.token or user.plugin is None:
            return Presented(user.token, identity)
        issued = await self._issue(user.plugin)
        return Presented(issued.token, issued.identity or identity)

    def refused(self, presented: Presented) -> bool:
        """The server said 401 to these. Whether asking once more may bring others."""
        if self._file:
            return self._file.reread() and self._file.read() != presented.token
        if self._issued is not None and presented.token == self._issued.token:
            self._issued = None
        if self._access.user.plugin is not None and not self._access.user.token:
            return True
        return self._reread()

    def _reread(self) -> bool:
        """Whoever renews a token that stands in the kubeconfig writes another kubeconfig."""
        try:
            user = load_kubeconfig(Path(self._access.source), self._access.context).user
        except AccessInvalid:
            return False
        is_another = user.token.reveal() != self._access.user.token.reveal()
        if is_another:
            self._access = replace(self._access, user=user)
        return is_another

    async def _issue(self, plugin: ExecCommand) -> Issued:
        async with self._renewing:
            issued = self._issued
            renewed_s = self._clock.wall_s() + RENEWAL_MARGIN_S
            if issued is None or (issued.expires_s is not None and renewed_s >= issued.expires_s):
                issued = await run_plugin(plugin, self._access.cluster, self._exec_deadline_s)
                self._issued = issued
        return issued


class TokenFile:
    """A token in a file that somebody replaces from time to time. While it cannot be read the last one stays."""

    def __init__(self, path: Path) -> None:
        self._pem = Pem(str(path), path)
        self._stamp: object = None
        self._token = NO_SECRET

    def read(self) -> Secret:
        """The token; the file is only opened if it is not what it was."""
        if not self._token or file_stamp(self._pem) != self._stamp:
            self.reread()
        return self._token

    def reread(self) -> bool:
        """Open the file. False: it cannot be read, and the last token stays."""
        stamp = file_stamp(self._pem)
        try:
            token = _token(Path(self._pem.where))
        except CredentialsFailed:
            if self._token:
                return False
            raise
        self._stamp, self._token = stamp, token
        return True


def _token(path: Path) -> Secret:
    try:
        with path.open("rb") as source:
            content = source.read(MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise CredentialsFailed(f"{path}: cannot be read: {error.strerror}; expected a file with a token") from error
    if not content or len(content) > MAX_TOKEN_BYTES or any(not 0x21 <= sign <= 0x7E for sign in content):
        raise CredentialsFailed(f"{path}: holds no token; expected one line of letters, digits and punctuation")
    return Secret(content)
