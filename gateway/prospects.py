"""Whether a request may look for a place at all: who serves its model, who is about to, and what its body did before.

Shell only in that it asks what the plane knows; it changes nothing. Every refusal here comes before the request ran.
"""

from typing import TYPE_CHECKING

from backends.base import Kind
from gateway import refusals
from gateway.api import unknown_model

if TYPE_CHECKING:
    from gateway.server import DataPlane

POISON_BACKENDS = 2


def check_hope(plane: "DataPlane", model: str, kind: Kind, due_s: float) -> None:
    """Raises Refusal when nobody serves the model, and nobody is about to before `due_s`."""
    fleet = plane.fleet
    if fleet.routable(model, kind):
        return
    if wait_s := plane.lodging.too_far_s(model, plane.now(), due_s):
        raise refusals.not_loaded(model, wait_s)
    if fleet.hopeful(model):
        return
    if not fleet.knows(model):
        raise unknown_model(model, plane.known_models())  # who might have served it has said otherwise
    if fleet.routable(model):
        raise refusals.wrong_kind(model)
    raise refusals.no_backend(model, plane.probe_wait_s())


def to_avoid(plane: "DataPlane", model: str, kind: Kind, body_hash: int) -> frozenset[str]:
    """The poison rule: a body that made several backends drop the connection is not tried on more of them, and one that
    made one of them drop it, or answer 5xx, goes elsewhere if it can. Raises Refusal."""
    fleet, now_s = plane.fleet, plane.now()
    droppers = fleet.droppers(body_hash, now_s)
    if len(droppers) >= POISON_BACKENDS:
        raise refusals.breaks_backends()
    failed = droppers | fleet.refusers(body_hash, now_s)
    elsewhere = any(replica.name not in failed for replica in fleet.routable(model, kind))
    return failed if elsewhere else frozenset()
