# SPDX-License-Identifier: Apache-2.0
"""How calls to the container runtime fail, in terms a plane can act on: with the runtime's own words."""


class RuntimeCallFailed(Exception):
    """The runtime answered with an error. `code` is the gRPC code's name, such as `UNKNOWN`."""

    code = "UNKNOWN"

    def __init__(self, method: str, details: str, code: str = "") -> None:
        super().__init__(f"{method}: {details}")
        self.method = method
        self.details = details
        self.code = code or type(self).code


class NotFound(RuntimeCallFailed):
    code = "NOT_FOUND"


class AlreadyExists(RuntimeCallFailed):
    code = "ALREADY_EXISTS"


class DeadlineExceeded(RuntimeCallFailed):
    """No answer in time; whether the call took effect is unknown."""

    code = "DEADLINE_EXCEEDED"


class Unavailable(RuntimeCallFailed):
    """Nobody answers at the endpoint; a later call may succeed."""

    code = "UNAVAILABLE"


class NotImplementedByRuntime(RuntimeCallFailed):
    code = "UNIMPLEMENTED"
