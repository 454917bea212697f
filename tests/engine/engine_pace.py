"""How fast this machine runs Python just now, beside the one on which costs in microseconds were promised: on a slower one, or
where others crowd the core's caches, the same work takes more of a thread's CPU time.
"""

import time

PROMISED_ON_US = 260.0
ROUNDS = 30


def times_slower() -> float:
    """At least 1: a faster machine promises no more."""
    return max(1.0, min(_work_us() for _ in range(ROUNDS)) / PROMISED_ON_US)


def _work_us() -> float:
    began_s = time.thread_time()
    made = {str(number): [number, number + 1] for number in range(2000)}
    assert sum(map(len, made.values())) == 4000
    return 1e6 * (time.thread_time() - began_s)
