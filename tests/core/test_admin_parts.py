"""The decisions of the control plane: what is routable, what a patch does, what a row or an address may be."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from gateway.addresses import AddressError
from gateway.admin_http import DRAIN_S_MAX
from gateway.admin_schema import (
    drain_timeout_s,
    merge_patch,
    new_backend,
    new_worker,
    patched_backend,
    worker_name,
)
from gateway.admin_views import backend_view, routing
from gateway.config import Admin, BackendSpec, GatewayConfig, Health, Limits, Listen
from gateway.fleet import Fleet
from gateway.operations import OperationError, Retirement, literal_address, needs_restart, still_needed
from gateway.replica import Replica
from gateway.store import NAME, decode, encode

SPEC = BackendSpec(
    "a", "http://10.0.0.7:8000", "vllm", ("m",), 2.0, (("zone", "1"),), api_key="secret", max_in_flight=3, declared=False
)


def ready(fleet: Fleet, name: str, *models: str, state: str = "ready") -> Replica:
    """A replica in the table, in some state."""
    replica = fleet.added(BackendSpec(name, f"http://10.0.0.1:8000/{name}", models=models))
    replica.state = state  # type: ignore[assignment]
    return replica


def test_importing_the_control_plane_does_not_load_the_settings_library() -> None:
    said = "import sys, gateway.admin; print(sorted(m for m in sys.modules if m.split('.')[0].startswith('pydantic')))"
    assert subprocess.run([sys.executable, "-c", said], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_why_agrees_with_what_the_dispatcher_does() -> None:
    seen = set()
    for state in ("starting", "ready", "draining", "down"):
        for trial in (False, True):
            for in_flight in (0, 1, 3):
                for overloaded_until_s in (0.0, 11.5):
                    replica = Replica(SPEC)
                    replica.state, replica.trial, replica.in_flight, replica.trying = state, trial, in_flight, in_flight
                    replica.overloaded_until_s, replica.reason = overloaded_until_s, "because"
                    may, why = routing(replica, 10.0)
                    assert may == (state == "ready" and replica.open(10.0)), (replica, why)
                    assert why
                    seen.add(why)
    assert "down: because" in seen
    assert "it said that it is overloaded; left alone for another 1.5 s" in seen
    assert len(seen) == 8


def test_a_view_shows_everything_but_the_key() -> None:
    replica = Fleet(Health()).added(SPEC)
    view = backend_view(replica, removing=False, now_s=5.0)
    assert view.has_api_key
    assert "secret" not in repr(view)
    assert view.last_probe_age_s is None
    assert view.drain_left_s is None
    assert not backend_view(Replica(replace(SPEC, api_key="")), removing=False, now_s=5.0).has_api_key


def test_drain_time_left_counts_down_to_zero() -> None:
    fleet = Fleet(Health())
    replica = ready(fleet, "a", "m")
    fleet.drain(replica, 30.0)
    assert [backend_view(replica, True, now_s).drain_left_s for now_s in (10.0, 29.5, 31.0)] == [20.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": "foo"}, "bar", "bar"),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_the_rfc(target: object, patch: object, merged: object) -> None:
    assert merge_patch(target, patch) == merged


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "must be an object"),
        ({"name": "a", "url": "http://h:1", "declared": True}, "declared: no such option"),
        ({"name": "a", "url": "http://h:1/v1"}, "url: The URL must be the base URL, without /v1: the gateway adds it."),
        ({"name": "a", "url": "http://h:1", "models": {}, "labels": 5}, "models: must be a list; labels: must be an object"),
    ],
)
def test_what_is_wrong_is_told_in_words_of_the_api(data: object, message: str) -> None:
    with pytest.raises(OperationError) as caught:
        new_backend(data)
    assert caught.value.message == message


def test_a_patch_changes_only_what_it_names() -> None:
    assert patched_backend(SPEC, {}) == SPEC
    changed = patched_backend(SPEC, {"weight": 5, "labels": {"zone": None, "rack": "r1"}, "models": None, "name": "a"})
    assert changed == replace(SPEC, weight=5.0, labels=(("rack", "r1"),), models=())
    assert patched_backend(SPEC, {"api_key": None}).api_key == ""


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"name": "b"}, "name"),
        ({"url": None}, "url"),
        ({"weight": 0}, "weight"),
        ({"weight": "5"}, "weight"),
        ({"engine": "tgi"}, "engine"),
        ({"api_key": "new\r\nHost: evil"}, "api_key"),
        ({"api_key": 5}, "api_key"),
        ({"labels": {"zone": 5}}, "labels.zone"),
        ({"max_in_flight": 1.5}, "max_in_flight"),
        ({"api_key_file": "/etc/passwd"}, "api_key_file"),
        ({"declared": True}, "declared"),
    ],
)
def test_a_bad_patch_names_the_field_and_repeats_nothing(patch: dict[str, object], param: str) -> None:
    with pytest.raises(OperationError) as caught:
        patched_backend(SPEC, patch)
    assert (caught.value.status, caught.value.param) == (422, param)
    assert not any(text in caught.value.message for text in ("evil", "passwd", "tgi", "secret"))


def test_many_problems_are_told_but_not_without_end() -> None:
    with pytest.raises(OperationError) as caught:
        new_backend({f"x{i}": 1 for i in range(100)})
    assert caught.value.message.endswith("and 86 more")


@pytest.mark.parametrize(("given", "wanted"), [({}, None), ({"timeout_s": 0}, 0.0), ({"timeout_s": DRAIN_S_MAX}, DRAIN_S_MAX)])
def test_drain_limits(given: object, wanted: float | None) -> None:
    assert drain_timeout_s(given) == wanted


def test_worker_names_are_legal_and_differ_as_the_urls_do() -> None:
    long = "a" * 60 + ".example.org"
    urls = [
        "http://10.0.0.7:8000",
        "https://10.0.0.7:8000",
        "http://10.0.0.7:8000/one",
        "http://10.0.0.7:8000/two",
        "http://10.0.0.7",
        "http://[fd00::7]:8000",
        "http://[fd00:0::8]:8000",
        f"http://{long}:1",
        f"http://{long}.net:1",
        "http://under_score:8000",
        "http://under-score:8000",
        "http://_:8000",
    ]
    names = [worker_name(url) for url in urls]
    assert names[0] == "10.0.0.7-8000"
    assert all(NAME.fullmatch(name) for name in names), names
    assert len(set(names)) == len(urls)


def test_a_worker_body_becomes_a_backend() -> None:
    spec = new_worker({"url": "http://10.0.0.7:8000/", "model_id": "m", "runtime_type": "sglang", "priority": 3, "cost": 2})
    assert (spec.name, spec.url, spec.engine, spec.models) == ("10.0.0.7-8000", "http://10.0.0.7:8000", "sglang", ("m",))
    with pytest.raises(OperationError):
        new_worker({"url": "http://10.0.0.7:8000", "connection_mode": "grpc"})


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.1", "127.0.0.1.", "1.2.3.4.5", "0x"]
)
def test_numbers_that_only_c_reads_as_addresses_are_refused(host: str) -> None:
    with pytest.raises(AddressError):
        literal_address(host)


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("gpu1", ""), ("a.b.c1", ""), ("", "")]
)
def test_plain_addresses_and_names(host: str, address: str) -> None:
    assert literal_address(host) == address


KNOWN = replace(
    SPEC, profile="llama-2-7b/tp1/a30", kv_blocks=1052, block_size=16, max_num_seqs=48, max_num_batched_tokens=512,
    sidecar="http://10.0.0.7:9000", sidecar_token="whisper",
    kv_events="tcp://10.0.0.7:5557", kv_replay="tcp://10.0.0.7:5558", scheduling="priority", restore_tokens_per_s=1e5,
)  # fmt: skip


@pytest.mark.parametrize("spec", [SPEC, KNOWN])
def test_a_row_comes_back_as_it_went(spec: BackendSpec) -> None:
    assert decode("a", encode(spec)) == spec


def test_a_row_of_an_earlier_version_has_the_defaults() -> None:
    row = json.loads(encode(KNOWN))
    later = ("profile", "kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "sidecar", "sidecar_token")
    latest = ("kv_events", "kv_replay", "scheduling", "restore_tokens_per_s")
    before = {name: value for name, value in row.items() if name not in latest}
    assert decode("a", json.dumps(before)) == replace(
        KNOWN, kv_events="", kv_replay="", scheduling="auto", restore_tokens_per_s=0.0
    )
    assert decode("a", json.dumps({name: value for name, value in before.items() if name not in later})) == SPEC


def test_what_is_known_of_an_engine_is_patched_like_the_rest() -> None:
    assert patched_backend(KNOWN, {}) == KNOWN
    changed = patched_backend(KNOWN, {"profile": None, "max_num_batched_tokens": 2048, "sidecar": "http://10.0.0.8:9000/"})
    assert changed == replace(KNOWN, profile="", max_num_batched_tokens=2048, sidecar="http://10.0.0.8:9000")
    assert new_backend({"name": "a", "url": SPEC.url}).profile == ""
    changed = patched_backend(KNOWN, {"kv_replay": None, "scheduling": "leeway", "restore_tokens_per_s": 7})
    assert changed == replace(KNOWN, kv_replay="", scheduling="leeway", restore_tokens_per_s=7.0)


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"profile": "no-such-model/tp1/h100"}, "profile"),
        ({"profile": "/etc/passwd.toml"}, "profile"),
        ({"kv_blocks": -1}, "kv_blocks"),
        ({"kv_blocks": 1.5}, "kv_blocks"),
        ({"block_size": 65537}, "block_size"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_num_batched_tokens": 1 << 32}, "max_num_batched_tokens"),
        ({"sidecar": "file:///etc/passwd"}, "sidecar"),
        ({"sidecar_token": "a\nb"}, "sidecar_token"),
        ({"sidecar_token_file": "/etc/passwd"}, "sidecar_token_file"),
        ({"kv_events": "ipc:///etc/passwd"}, "kv_events"),
        ({"kv_events": "tcp://*:5557"}, "kv_events"),
        ({"kv_replay": "http://passwd:80"}, "kv_replay"),
        ({"kv_replay": "tcp://10.0.0.7"}, "kv_replay"),
        ({"scheduling": "passwd"}, "scheduling"),
        ({"restore_tokens_per_s": -1.0}, "restore_tokens_per_s"),
        ({"restore_tokens_per_s": 1e12}, "restore_tokens_per_s"),
        ({"restore_tokens_per_s": float("nan")}, "restore_tokens_per_s"),
    ],
)
def test_what_cannot_be_known_of_an_engine_is_refused(patch: dict[str, object], param: str) -> None:
    with pytest.raises(OperationError) as caught:
        patched_backend(KNOWN, patch)
    assert (caught.value.status, caught.value.param) == (422, param)
    assert not any(text in caught.value.message for text in ("passwd", "whisper", "no-such-model"))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "b"},
        {"name": 5},
        {"url": "file:///etc/passwd"},
        {"url": "http://10.0.0.7:22"},
        {"engine": "tgi"},
        {"models": "m"},
        {"models": [1]},
        {"models": [""]},
        {"labels": [["a"]]},
        {"labels": [["a", 1]]},
        {"weight": 0},
        {"weight": True},
        {"weight": None},
        {"max_in_flight": 0},
        {"max_in_flight": 1.0},
        {"api_key": "a\nb"},
        {"profile": "/etc/passwd.toml"},
        {"profile": 5},
        {"kv_blocks": -1},
        {"kv_blocks": True},
        {"max_num_batched_tokens": 1 << 40},
        {"sidecar": "http://10.0.0.7:22"},
        {"sidecar": "passwd"},
        {"sidecar_token": "a\nb"},
        {"kv_events": "ipc:///etc/passwd"},
        {"kv_replay": "tcp://10.0.0.7:22"},
        {"kv_replay": 5},
        {"scheduling": "passwd"},
        {"restore_tokens_per_s": -1.0},
        {"restore_tokens_per_s": float("nan")},
        {"restore_tokens_per_s": True},
    ],
)
def test_a_row_that_does_not_validate_is_refused_without_its_content(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        decode("a", json.dumps(json.loads(encode(SPEC)) | change))
    assert "secret" not in str(caught.value)
    assert "passwd" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", None, b"x", "null"])
def test_a_row_that_is_no_object_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"no JSON object|missing"):
        decode("a", text)


def test_what_only_a_restart_applies_is_named() -> None:
    old = GatewayConfig()
    new = replace(old, listen=Listen(data="127.0.0.1:1"), limits=Limits(response_ids=1, n=5), health=Health(failures=7))
    assert needs_restart(old, new) == ("listen.data", "limits.response_ids", "health.failures")
    assert needs_restart(old, old) == ()
    made = replace(old, admin=Admin(key_file="key"))
    assert needs_restart(made, replace(old, admin=Admin(key="made", key_file="key"))) == ()
    assert needs_restart(old, replace(old, admin=Admin(key="other"))) == ("admin.key",)


def test_a_dropped_backend_stays_while_nobody_else_serves_its_model_and_somebody_is_coming() -> None:
    fleet = Fleet(Health())
    old, other = ready(fleet, "old", "m"), ready(fleet, "other", "x")
    newcomer = ready(fleet, "new", "m", state="starting")
    leaving = frozenset(("old", "other"))
    retirement = Retirement(100.0, frozenset(("new", "never-was")))
    assert still_needed(old, fleet, retirement, leaving, 1.0)
    assert not still_needed(other, fleet, retirement, leaving, 1.0), "nobody will ever serve its model: gone at once"
    assert not still_needed(old, fleet, retirement, leaving, 100.0), "not for ever"
    assert not still_needed(old, fleet, Retirement(100.0, frozenset()), leaving, 1.0)
    newcomer.state = "down"
    assert still_needed(old, fleet, retirement, leaving, 1.0), "it may be loading its model"
    old.state = "down"
    assert not still_needed(old, fleet, retirement, leaving, 1.0), "it serves nobody anyway"
    old.state, newcomer.state = "ready", "ready"
    fleet.respecified("new", replace(newcomer.spec, weight=2.0))  # the cached routes forget
    assert not still_needed(old, fleet, retirement, leaving, 1.0)


def test_a_newcomer_that_has_not_said_what_it_serves_is_waited_for() -> None:
    fleet = Fleet(Health())
    old = ready(fleet, "old", "m")
    ready(fleet, "new", state="starting")
    assert still_needed(old, fleet, Retirement(100.0, frozenset(("new",))), frozenset(("old",)), 1.0)
