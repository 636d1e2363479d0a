# SPDX-License-Identifier: Apache-2.0
"""Something that people should hear about: what Kubernetes calls an event."""

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`object_name` is empty for what concerns the node itself. Times are wall time. The ring gives the id."""

    id: str = ""
    is_warning: bool
    reason: str
    message: str
    plane: str
    namespace: str = ""
    object_name: str = ""
    object_kind: str = ""
    """Deployment, DaemonSet or Job; empty for what the plane tells already."""
    object_uid: str = ""
    """Of an object of the API, where it is known."""
    public: str = ""
    """What everybody may know who may read events of the namespace; empty: the message."""
    container: str = ""
    count: int = 1
    first_seen_s: float = 0.0
    last_seen_s: float = 0.0

    @property
    def sameness(self) -> tuple[str, ...]:
        """What must be equal for two to be one event seen again."""
        return (
            self.plane,
            self.namespace,
            self.object_kind,
            self.object_name,
            self.container,
            self.reason,
            self.message,
        )
