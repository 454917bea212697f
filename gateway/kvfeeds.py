"""The engines' KV events, read by this process: one feed for each backend that has `kv_events`. Shell.

A feed belongs to whoever watches its backend and ends with that. What it hears corrects the prefix index that placement
reads; that it hears nothing costs no request.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.replica import Replica
from gateway.server import DataPlane

if TYPE_CHECKING:
    from backends.kv_feed import KvFeed


class KvFeeds:
    """See the module's words."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._feeds: dict[str, tuple[KvFeed, asyncio.Task[None]]] = {}

    def __iter__(self) -> Iterator[tuple[str, "KvFeed"]]:
        return iter([(name, feed) for name, (feed, _) in self._feeds.items()])

    def watch(self, replica: Replica) -> None:
        """Read that backend's events from now on, if it has any to read."""
        self.unwatch(replica.name)
        spec = replica.spec
        if not spec.kv_events:
            return

        from backends.kv_feed import KvFeed  # brings msgspec: 1 MB that most gateways need not hold

        def changed(feed: "KvFeed") -> None:
            level = "info" if feed.connected else "warning"
            self._plane.logs.event(level, "kv_events", backend=replica.name, connected=feed.connected, reason=feed.problem)

        allowed = None if spec.declared else self._plane.pools.guarded_address
        view = self._plane.desks.engines.view(replica)
        feed = KvFeed(spec.kv_events, spec.kv_replay, view, changed=changed, allowed=allowed)
        self._feeds[replica.name] = (feed, asyncio.create_task(feed.run(), name=f"kv-events-{replica.name}"))

    def unwatch(self, name: str) -> None:
        """Stop reading."""
        found = self._feeds.pop(name, None)
        if found is not None:
            found[1].cancel()
            self._plane.desks.engines.blind(name)

    async def close(self) -> None:
        """Stop all of it."""
        tasks = [task for _, task in self._feeds.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._feeds.clear()
