"""How many files this process may have open, and how many clients that leaves room for. Shell.

Each request takes a descriptor for its client and one for its backend. Clients that only stay connected must never use
them up: no backend could be reached any more, and all of them would look down.
"""

import resource
from contextlib import suppress

ENOUGH = 1 << 20  # engines that the gateway starts inherit it, and some programs walk through all that they may have
RESERVED = 128  # log, files, listeners, probes, sidecars, the control plane, the tagger


def raise_limit() -> None:
    """As many as the system lets this process have: a shell's usual soft limit of 1024 is no decision of anybody's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def affordable_clients() -> int:
    """Client connections for which there are descriptors, with a backend's connection for each."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return clients_of(soft if soft != resource.RLIM_INFINITY else 1 << 31)


def clients_of(descriptors: int) -> int:
    """The same for a process that may have so many."""
    return max(descriptors // 4, (descriptors - RESERVED) // 2)
