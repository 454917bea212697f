"""Reading fields of a JSON body as json.loads would, in slices of any size, and editing two of them by splices."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.intake import SCAN_TOKENS
from gateway.relay.splice import (
    EMPTY,
    MAX_VALUE_BYTES,
    WANTED,
    BodyError,
    BodyFields,
    Scan,
    edited,
    fields_of,
    member_edit,
    model_edit,
    multipart_field,
    parse_small,
    scan,
    usage_edit,
)

DEPTH = 1024


def made_of(body: bytes, *edits: tuple[int, int, bytes] | None) -> bytes:
    return b"".join(edited(body, [edit for edit in edits if edit is not None]))


def ask_usage(body: bytes, fields: BodyFields, depth: int, span: tuple[int, int] | None = None) -> bytes:
    return made_of(body, usage_edit(body, fields, depth, span))


def set_model(body: bytes, name: str, depth: int, span: tuple[int, int] | None = None) -> bytes:
    return made_of(body, model_edit(body, name, depth, span))


def added(body: bytes, member: bytes) -> bytes:
    return made_of(body, member_edit(body, member))


def judge(body: bytes) -> BodyFields:
    """As the intake does with a small body."""
    fields = parse_small(body)
    return scan(body, DEPTH).fields() if fields is None else fields


# -- bodies as texts: any white space, escapes, order, repeated keys

odd_texts = ('"', "\\", '\\"', "{", "}", "[,", ":", "한글😀", "model", '{"model":"x"}', "a\nb")
text = st.text(max_size=8) | st.sampled_from(odd_texts)
scalar = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | text
anything = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
options = st.none() | st.dictionaries(st.sampled_from(("include_usage", "continuous_usage_stats", "x")), scalar, max_size=3)
valued = st.one_of(
    st.tuples(st.sampled_from(sorted(WANTED)), scalar),
    st.tuples(st.sampled_from(("model", "user", "prompt_cache_key", "previous_response_id")), text),
    st.tuples(st.sampled_from(("stream", "model", "n", "max_tokens", "priority")), st.just(True) | st.integers(0, 300)),
    st.tuples(st.just("stream_options"), options),
    st.tuples(st.just("metadata"), st.fixed_dictionaries({"user_id": text})),
    st.tuples(text, anything),
)
blank = st.sampled_from(("", "", " ", "\n", "\t \r\n"))


@st.composite
def written(draw: st.DrawFn, value: object) -> str:
    """`value` as JSON in one of many hands."""
    made = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from((None, None, 1))))
    if isinstance(value, str) and draw(st.booleans()):
        return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in value if c not in '"\\\n') + '"'
    return made


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    members = []
    for key, value in draw(st.lists(valued, max_size=6)):
        before, behind, ahead = draw(blank), draw(blank), draw(blank)
        members.append(before + draw(written(key)) + behind + ":" + ahead + draw(written(value)) + draw(blank))
    return (draw(blank) + "{" + (",".join(members) or draw(blank)) + "}" + draw(blank)).encode("utf-8", "surrogatepass")


@settings(max_examples=120, deadline=None)
@given(bodies(), st.integers(1, 40))
def test_the_scan_reads_what_json_reads_in_slices_of_any_size(body: bytes, tokens: int) -> None:
    parsed = json.loads(body)
    whole = scan(body, DEPTH)
    assert {key: json.loads(body[a:b]) for key, (a, b) in whole.spans.items()} == {
        key: value for key, value in parsed.items() if key in WANTED
    }
    assert whole.fields() == judge(body) == fields_of(parsed)
    sliced = Scan(body, DEPTH)
    steps = 0
    while not sliced.step(tokens):
        steps += 1
        assert steps <= len(body)
    assert sliced.spans == whole.spans


@settings(max_examples=80, deadline=None)
@given(bodies(), st.booleans())
def test_asking_for_usage_changes_one_member_and_no_other_byte(body: bytes, knows_span: bool) -> None:
    parsed, whole = json.loads(body), scan(body, DEPTH)
    span = whole.spans.get("stream_options")
    made = ask_usage(body, whole.fields(), DEPTH, span if knows_span else None)
    if "stream_options" in parsed and not isinstance(parsed["stream_options"], dict | None):
        assert made == body, "the engine judges it"
        return
    wanted = {**(parsed.get("stream_options") or {}), "include_usage": True}
    if "continuous_usage_stats" in wanted:
        wanted["continuous_usage_stats"] = False
    assert json.loads(made) == {**parsed, "stream_options": wanted}
    untouched(body, made, span)
    assert judge(made).asks_usage


@settings(max_examples=80, deadline=None)
@given(bodies(), text, st.booleans())
def test_setting_the_model_changes_one_member_and_no_other_byte(body: bytes, name: str, knows_span: bool) -> None:
    span = scan(body, DEPTH).spans.get("model")
    made = set_model(body, name, DEPTH, span if knows_span else None)
    assert json.loads(made) == {**json.loads(body), "model": name}
    untouched(body, made, span)


def untouched(body: bytes, made: bytes, span: tuple[int, int] | None) -> None:
    if span is not None:
        assert (made[: span[0]], made[len(made) - (len(body) - span[1]) :]) == (body[: span[0]], body[span[1] :])
        return
    at = body.index(b"{") + 1
    new = made[at : at + len(made) - len(body)]
    assert made == body[:at] + new + body[at:]


@pytest.mark.parametrize(
    "odd",
    [
        b'"seed":18446744073709551616',
        b'"seed":123456789012345678901234567890',
        b'"a":"\\ud800"',
        b'"a":"\\udfff\\ud800"',
        b'"a":1E2,"b":1.0,"c":-0,"d":1e400',
        b'"a":NaN,"b":Infinity',
        b'"a" :\t[ 1 ,2]',
        b'"a":"\\u0041\\/"',
        b'"\\ud800":1',
        b'"a":1,"a":2',
        b'"a":"\xed\xa0\x80"',
        b'"a":"\xff"',
    ],
)
def test_what_the_fast_parser_would_change_or_refuse_survives(odd: bytes) -> None:
    body = b'{"model":"alias","stream":true,' + odd + b',"n":2}'
    fields = judge(body)
    assert (fields.model, fields.stream, fields.n) == ("alias", True, 2)
    asked = ask_usage(body, fields, DEPTH)
    assert asked == b'{"stream_options":{"include_usage":true},' + body[1:]
    assert set_model(asked, "real", DEPTH) == asked.replace(b'"alias"', b'"real"')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"[]",
        b"null",
        b"true",
        b"1",
        b'"a"',
        b"[{}]",
        b'{"a":1}{"b":2}',
        b'{"a":1} x',
        b'{"a":1}\0',
        b'{"a":1},',
        b"{",
        b'{"a',
        b'{"a"',
        b'{"a":',
        b'{"a":"b',
        b'{"a":"b\\"}',
        b'{"a":[1}',
        b'{"a":1]',
        b'{"a":{"b":1}',
        b'{"model" "m"}',
        b'{"model"}',
        b"\xef\xbb\xbf{}",
        '{"model":"m"}'.encode("utf-16"),
        '{"model":"m"}'.encode("utf-16-le"),
        '{"model":"m"}'.encode("utf-16-be"),
        '{"model":"m"}'.encode("utf-32-le"),
        b'{"a":' * 1030 + b"1" + b"}" * 1030,
        b'{"a":' + b"[" * 1030 + b"]" * 1030 + b"}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000,
        b'{"a":1}' + b" " * 70_000 + b"{}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_one_object_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError, match=r"^(the|a member of the) request body "):
        judge(body)
    with pytest.raises(BodyError):
        scan(body, DEPTH)


def test_depth_is_bounded_by_the_configuration() -> None:
    def nested(depth: int) -> bytes:
        return b'{"model":"m","a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert judge(nested(1000)).model == scan(nested(1024), 1024).fields().model == "m"
    assert scan(nested(16), 16).fields().model == "m"
    for depth, bound in ((1025, 1024), (17, 16)):
        with pytest.raises(BodyError, match=f"deeper than {bound} levels"):
            scan(nested(depth), bound)


def test_the_engine_judges_the_rest() -> None:
    """What a strict parser refuses and routing does not need goes on."""
    for body in (b"{'model':'m'}", b'{"a":1,}', b"{,}", b'{"a":tru}', b'{"a":01}', b'{"a":"\n"}', b'{"a" 1}', b'{"model":}'):
        assert judge(body) == EMPTY


SESSION = frozenset(("session_id",))


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        (b"{}", {}),
        (b'{"model":"a/b:c"}', {"model": "a/b:c"}),
        (b'{"model":7}', {}),
        (b'{"model":"' + b"m" * 513 + b'"}', {}),
        (b'{"model":"a","model":"b"}', {"model": "b"}),
        (b'{"a":{"model":"inner"},"b":["model","x"]}', {}),
        (b'{"a":"model","model":"m"}', {"model": "m"}),
        (b'{"stream":1}', {"stream": True}),
        (b'{"stream":"TRUE"}', {"stream": True}),
        (b'{"stream":2}', {}),
        (b'{"stream":"enabled"}', {}),
        (b'{"stream":[1]}', {}),
        (b'{"stream":true}', {"stream": True}),
        (b'{"max_tokens":7}', {"max_tokens": 7}),
        (b'{"max_tokens":7,"max_completion_tokens":9}', {"max_tokens": 9}),
        (b'{"max_output_tokens":7}', {"max_tokens": 7}),
        (b'{"max_tokens":true}', {}),
        (b'{"max_tokens":7.5}', {}),
        (b'{"n":3,"best_of":5}', {"n": 5}),
        (b'{"n":-3}', {}),
        (b'{"n":"3"}', {"n": 3}),
        (b'{"n":200.0}', {"n": 200}),
        (b'{"n":1e30}', {"n": 1 << 31}),
        (b'{"best_of":" 1_000"}', {"n": 1000}),
        (b'{"n":"many","best_of":[7]}', {}),
        (b'{"n":"nan"}', {}),
        (b'{"priority":-5}', {"priority": -5}),
        (b'{"priority":null}', {"priority": 0}),
        (b'{"user":"u"}', {"session": "u"}),
        (b'{"user":"u","metadata":{"user_id":"s"}}', {"session": "s"}),
        (b'{"user":"u","metadata":{"user_id":"s"},"session_id":"t"}', {"session": "t", "engine_members": SESSION}),
        (b'{"user":"u","session_id":"t","prompt_cache_key":"k"}', {"session": "k", "engine_members": SESSION}),
        (b'{"session_params":null}', {"engine_members": frozenset(("session_params",))}),
        (b'{"metadata":[1]}', {}),
        (b'{"stream_options":null}', {"has_stream_options": True}),
        (b'{"stream_options":{"include_usage":false}}', {"has_stream_options": True}),
        (b'{"stream_options":{"include_usage":true}}', {"has_stream_options": True, "asks_usage": True}),
        (b'{"stream_options":{"include_usage":"yes"}}', {"has_stream_options": True, "asks_usage": True}),
        (b'{"previous_response_id":"resp_1"}', {"previous_response_id": "resp_1"}),
    ],
)
def test_fields(body: bytes, changes: dict[str, object]) -> None:
    assert judge(body) == scan(body, DEPTH).fields() == EMPTY._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", sorted(WANTED))
def test_a_key_is_known_with_every_character_escaped(key: str) -> None:
    escaped = "".join(f"\\u{ord(c):04X}" for c in key)
    body = f'{{"{escaped}": {{"include_usage": false}} }}'.encode()
    start, end = scan(body, DEPTH).spans[key]
    assert body[start:end] == b'{"include_usage": false}'
    asked = ask_usage(body, judge(body), DEPTH)
    assert json.loads(asked) == {key: {"include_usage": key == "stream_options"}} | (
        {} if key == "stream_options" else {"stream_options": {"include_usage": True}}
    )


def test_small_edits() -> None:
    assert added(b" {}", b'"a":1') == b' {"a":1}'
    assert added(b"{" + b" " * 100 + b"}", b'"a":1') == b'{"a":1' + b" " * 100 + b"}"
    assert added(b'{"b":2}', b'"a":1') == b'{"a":1,"b":2}'
    assert edited(b"abc", [(1, 2, b"XY")]) == (b"aXYc",)
    assert edited(b"abc", [(3, 3, b"Z"), (0, 0, b"A"), (0, 0, b"B")]) == (b"ABabcZ",)
    large = b"a" * 100_000
    pieces = edited(large, [(50_000, 50_001, b"b"), (0, 0, b"c")])
    assert len(pieces) == 5, "a large body is not copied"
    assert b"".join(pieces) == b"c" + large[:50_000] + b"b" + large[50_001:]
    big = b'{"model":"m","metadata":{"user_id":"' + b"u" * MAX_VALUE_BYTES + b'"}}'
    assert scan(big, DEPTH).fields() == BodyFields(model="m"), "values over the bound are not looked at"


# -- slices

SIZE = 2_000_000
ADVERSARIAL = {
    "one string": b'{"a":"' + b"x" * SIZE + b'"}',
    "escaped quotes": b'{"a":"' + b'\\"' * (SIZE // 2) + b'"}',
    "backslashes": b'{"a":"' + b"\\" * SIZE + b'"}',
    "runs of backslashes": b'{"a":"' + (b"\\" * 65535 + b'"') * (SIZE // 65536) + b'"}',
    "short runs of backslashes": b'{"a":"' + (b"\\" * 99 + b'"') * (SIZE // 100) + b'"}',
    "digits": b'{"a":' + b"1" * SIZE + b"}",
    "spaces": b'{"a"' + b" " * SIZE + b":1}",
    "spaces in many members": b"{" + (b'"model"' + b" " * 60_000 + b":1,") * (SIZE // 60_010) + b'"a":1}',
    "brackets": b'{"a":[' + b"[]," * (SIZE // 3) + b"1]}",
    "commas": b'{"a":1' + b"," * SIZE + b"}",
    "members": b"{" + b",".join(b'"k%06d":1' % i for i in range(SIZE // 12)) + b"}",
    "one key": b'{"' + b"k" * SIZE + b'":1}',
}


class Counted(bytes):
    """A body that counts the bytes copied out of it."""

    copied_bytes = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        got = super().__getitem__(key)
        if isinstance(got, bytes):
            self.copied_bytes += len(got)
        return got


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_a_slice_of_an_adversarial_body_is_bounded(name: str) -> None:
    """By what it copies, and each slice but the last moves on by at least a byte a token."""
    body = Counted(ADVERSARIAL[name])
    assert len(body) > SIZE * 0.95
    scanning = Scan(body, DEPTH)
    for steps in range(1, 21):
        before = body.copied_bytes
        done = scanning.step(SCAN_TOKENS)
        assert body.copied_bytes - before <= 2 * len(body)
        if done:
            break
        assert max(scanning._at, scanning._string_at) >= steps * SCAN_TOKENS // 2


def test_slices_end_where_their_tokens_end() -> None:
    scanning = Scan(b'{"a":[[],[],[]],"model":"m"}', DEPTH)
    seen = []
    while not scanning.step(1):
        seen.append(scanning._at)
    assert seen == sorted(set(seen))
    assert len(seen) == 13
    assert scanning.fields().model == "m"


# -- multipart

FORM = (
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="name=model"\r\n\r\n%b\r\n'
    b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper/x\r\n--B--\r\n'
)


@pytest.mark.parametrize(
    ("body", "content_type", "model"),
    [
        (FORM % b"audio", b"multipart/form-data; boundary=B", "whisper/x"),
        (FORM % b"audio", b'multipart/form-data; charset=utf-8; boundary="B"; a=b', "whisper/x"),
        (FORM % (b"\0\r\n--" * 50_000), b"multipart/form-data; boundary=B", "whisper/x"),
        (FORM % b'\r\n\r\nname="model"\r\n\r\nfake', b"multipart/form-data; boundary=B", "whisper/x"),
        (FORM % b"audio", b"multipart/form-data; boundary=C", ""),
        (FORM % b"audio", b"multipart/form-data", ""),
        (FORM % b"audio", b"", ""),
        (b"", b"multipart/form-data; boundary=B", ""),
        (b"--B", b"multipart/form-data; boundary=B", ""),
        (b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\ncut', b"multipart/form-data; boundary=B", ""),
        (b"--B\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--B--", b"multipart/form-data; boundary=B", "m"),
        (b'--B\r\nContent-Disposition: form-data; name="model2"\r\n\r\nm\r\n--B--', b"multipart/form-data; boundary=B", ""),
        (FORM.replace(b"whisper", b"m" * 600) % b"", b"multipart/form-data; boundary=B", "m" * 512),
        (b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\r\n--B--', b"m; boundary=B", "\ufffd"),
        (b"--B\r\n\r\n\r\n" * 300 + FORM % b"", b"multipart/form-data; boundary=B", ""),
    ],
)
def test_multipart_field(body: bytes, content_type: bytes, model: str) -> None:
    assert multipart_field(body, content_type, b"model") == model
