"""The table of replicas where models come and go: drains meanwhile, and those that were not well."""

from dataclasses import replace

import pytest

from gateway.fleet import Fleet
from gateway.swap_config import SwapSpec
from tests.core.test_fleet import FOUND, HEALTH, fleet, one, spec


@pytest.mark.parametrize("leaves", ["before", "meanwhile", "is to", "stays"])
def test_a_model_that_is_away_is_not_used_because_its_drain_is_over(leaves: str) -> None:
    made = Fleet(HEALTH)
    replica = made.added(replace(spec("a", "m"), swap=SwapSpec("gpu0", "sleep")))
    if leaves != "before":
        made.awake(replica)
        made.probed(replica, FOUND, 0.0)
    made.drain(replica, 9.0)
    if leaves in ("meanwhile", "is to"):
        made.cut(replica, "makes room")
    if leaves == "meanwhile":
        made.slept(replica, "left")
    assert replica.state == "draining"
    made.undrained(replica)
    made.probed(replica, FOUND, 1.0)  # an engine that sleeps is healthy
    assert replica.state == ("ready" if leaves == "stays" else "asleep")
    if leaves == "is to":
        made.reopened(replica)
    else:
        made.awake(replica)
    made.probed(replica, FOUND, 2.0)
    assert made.routable("m") == (replica,)


def test_one_that_was_not_well_is_not_used_because_it_stays() -> None:
    made = fleet("a")
    replica = one(made)
    made.wedged(replica)
    made.cut(replica, "makes room")
    made.reopened(replica)
    assert (replica.state, made.routable("m")) == ("starting", ())
    made.revived(replica, 1.0)
    made.cut(replica, "makes room")
    made.reopened(replica)
    assert made.routable("m") == (replica,)
