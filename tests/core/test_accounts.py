"""The figures of one finished request."""

import pytest

from gateway.access_line import access_fields
from gateway.accounts import Account


@pytest.mark.parametrize(
    ("times", "ttft_s", "queue_s"),
    [
        ({}, -1.0, -1.0),
        ({"accepted_s": 10.5}, -1.0, -1.0),
        ({"accepted_s": 10.5, "dispatched_s": 12.0}, -1.0, 1.5),
        ({"accepted_s": 10.5, "dispatched_s": 12.0, "first_byte_s": 12.25}, 2.25, 1.5),
        ({"accepted_s": 10.0, "dispatched_s": 10.0, "first_byte_s": 10.0}, 0.0, 0.0),
    ],
)
def test_times(times: dict[str, float], ttft_s: float, queue_s: float) -> None:
    account = Account(10.0)
    for name, value in times.items():
        setattr(account, name, value)
    assert (account.ttft_s, account.queue_s) == (ttft_s, queue_s)


def test_the_access_line_says_minus_one_of_what_there_was_not() -> None:
    account = Account(10.0)
    account.finished_s = 10.5
    told = access_fields(account, "")
    assert [told[name] for name in ("tokens_in", "tokens_out", "ttft_ms", "queue_ms", "duration_ms")] == [-1, -1, -1, -1, 500]


def test_an_account_starts_as_the_worst_end_and_shares_nothing() -> None:
    one, other = Account(1.0), Account(2.0)
    one.end, one.status, one.model = "complete", 200, "m"
    assert (other.end, other.status, other.model, other.prompt_tokens) == ("client_gone", 0, "", -1)
    one.request_id, one.route = "r-1", "chat"
    assert repr(one) == "<Account r-1 chat m 200 complete>"


@pytest.mark.parametrize(
    ("fields", "produced"),
    [
        ({"output_tokens": 7, "stream": True, "events": 9}, -1),  # not over
        ({"finished_s": 5.0, "output_tokens": 7, "stream": True, "events": 9}, 7),
        ({"finished_s": 5.0, "stream": True, "events": 9}, 9),
        ({"finished_s": 5.0}, -1),  # a plain answer without usage
    ],
)
def test_what_was_produced_is_known_when_it_is_over(fields: dict[str, float], produced: int) -> None:
    account = Account(1.0)
    for name, value in fields.items():
        setattr(account, name, value)
    assert account.produced_tokens == produced


def test_an_attempt_that_was_not_sent_has_not_begun() -> None:
    account = Account(1.0)
    account.dispatched_s = 2.0
    assert not account.begun
    account.sent_s = 2.0
    assert account.begun
    account.dispatched_s = 3.0  # the next one
    assert not account.begun
