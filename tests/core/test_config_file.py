"""gateway.toml and the environment: every problem at once with its place, key and reason; no secret is shown."""

import dataclasses
import hashlib
import os
from pathlib import Path

import pytest

from gateway.config import GatewayConfig, Limits, ModelSpec, masked
from gateway.config_file import BackendSection, ConfigError, json_schema, load

CANARY = "canary-5c1e"
BACKEND = '[[backends]]\nname = "{}"\nurl = "http://127.0.0.1:8000"\n'
DIGEST = hashlib.sha256(b"key").hexdigest()


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("LEEWAY_"):
            monkeypatch.delenv(name)


def loaded(tmp_path: Path, text: str | bytes) -> GatewayConfig:
    path = tmp_path / "gateway.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(str(path))


def problems(tmp_path: Path, text: str | bytes) -> list[str]:
    """The lines of the error, each without the file's path in front."""
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    said = str(caught.value)
    assert CANARY not in said
    return [line.removeprefix(f"{tmp_path / 'gateway.toml'}: ") for line in said.splitlines()]


def test_nothing_said_is_the_defaults(tmp_path: Path) -> None:
    assert load(None) == loaded(tmp_path, "") == GatewayConfig()


def test_a_file_becomes_records(tmp_path: Path) -> None:
    text = f"""
        usage = "off"
        [listen]
        data = "[::1]:80"
        [[backends]]
        name = "a"
        url = "http://127.0.0.1:8000/base/"
        models = ["org/name:tag"]
        weight = 2
        labels = {{ zone = "1", arch = "x" }}
        api_key = "{CANARY}"
        [models."*"]
        policy = "random"
        [models."org/name:tag"]
        d = 3
        aliases = ["short"]
        [classes.gold]
        ttft_ms = 500
        [[keys]]
        sha256 = "{DIGEST.upper()}"
        class = "gold"
        limits = {{ concurrent = 2 }}
        [limits]
        body_bytes = 4096
    """
    config = loaded(tmp_path, text)
    (backend,), (key,) = config.backends, config.keys
    assert (backend.url, backend.weight, backend.models) == ("http://127.0.0.1:8000/base", 2.0, ("org/name:tag",))
    assert (backend.labels, backend.api_key, backend.declared) == ((("arch", "x"), ("zone", "1")), CANARY, True)
    assert config.models == (ModelSpec("*", "random"), ModelSpec("org/name:tag", "auto", 3, ("short",)))
    assert (key.sha256, key.class_name, key.limits.concurrent) == (DIGEST, "gold", 2)
    assert (config.limits, config.listen.data) == (Limits(body_bytes=4096), "[::1]:80")
    assert config.usage == "off"


def test_every_problem_is_told_at_once_with_its_key_and_reason(tmp_path: Path) -> None:
    text = f"""
        usage = "maybe"
        nonsense = 1
        listen = {{ data = "nowhere" }}
        [[backends]]
        name = "a b"
        url = "ftp://host"
        weight = 0
        api_kee = "{CANARY}"
        [[backends]]
        name = "c"
        url = "http://user:{CANARY}@host"
        [models.m]
        policy = "po3"
        [[keys]]
        sha256 = "{CANARY}"
        [limits]
        head_bytes = 5
        [retry]
        ratio = "x"
        [admin]
        networks = ["10.0.0.0/8", "10.0.0.0/33", "x"]
    """
    found = {line.split(": ")[0]: line.split(": ", 1)[1] for line in problems(tmp_path, text)}
    assert set(found) == {
        *("usage", "nonsense", "listen.data", "models.m.policy", "keys.0.sha256", "limits.head_bytes", "retry.ratio"),
        *("backends.0.name", "backends.0.url", "backends.0.weight", "backends.0.api_kee", "backends.1.url"),
        *("admin.networks.1", "admin.networks.2"),
    }
    assert found["listen.data"] == "'nowhere' is not host:port (given: 'nowhere')"
    assert found["limits.head_bytes"] == "Input should be greater than or equal to 1024 (given: 5)"
    assert found["backends.0.api_kee"] == "no such option"
    assert found["backends.1.url"] == "Credentials do not belong in the URL; use api_key."
    assert "'consistent_hash'" in found["models.m.policy"]


def test_every_clash_is_told_at_once_with_both_names(tmp_path: Path) -> None:
    text = BACKEND.format("a") + 'models = ["real"]\n' + BACKEND.format("b") + BACKEND.format("a") + BACKEND.format("a")
    text += f'[[keys]]\nsha256 = "{DIGEST}"\n[[keys]]\nsha256 = "{DIGEST.upper()}"\n'
    text += '[tagger]\nmode = "off"\nlog = "lengths.jsonl"\n'
    text += '[models.m]\naliases = ["n", "real", "x", "y"]\n[models.n]\naliases = ["x", "z", "z"]\n'
    assert problems(tmp_path, text) == [
        "backends.2.name: two backends are named 'a'",
        "backends.3.name: two backends are named 'a'",
        "keys.1.sha256: this key is given twice",
        "tagger.log: nothing is logged while the mode is off",
        "models.m.aliases: alias 'n' of 'm' is the name of a model itself",
        "models.m.aliases: alias 'real' of 'm' is the name of a model itself",
        "models.n.aliases: alias 'x' is claimed by both 'm' and 'n'",
        "models.n.aliases: alias 'z' is claimed by both 'n' and 'n'",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = = 1", "line 1"),
        ("\n\n[limits\n", "line 3"),
        (b"\xff", "not UTF-8"),
        ("a = 1\na = 2\nb = 3", "line 2"),
        ("[[backends]]\nname = 'a'", "backends.0.url: Field required"),
        ("listen = 5", "listen: must be an object, as in [listen]"),
        ("backends = {}", "backends: must be a list, as in [[backends]]"),
        ("[[models]]\nname = 'm'", "models: must be an object, as in [models.NAME]"),
        ("[listen]\ndata = '[::1]:80'\ncontrol = '[::1]:80'", "listen.control: [::1]:80 is the address of listen.data, too"),
        ("[admin]\nkey = 'canäry'", "admin.key: a key may only hold visible ASCII characters"),
        ("[admin]\nkey = 'two words'", "admin.key: a key may only hold visible ASCII characters"),
        ("[[backends]]\nname = 'a'\nurl = 'http://h'\nkv_replay = 'tcp://h:1'", "backends.0.kv_replay: needs kv_events"),
        ('_env_file = "x"', "_env_file: no such option"),
        ('_secrets_dir = "x"', "_secrets_dir: no such option"),
        ("[timeouts]\nhead_s = inf", "timeouts.head_s: "),
        ("[timeouts]\nhead_s = nan", "timeouts.head_s: "),
        ("[timeouts]\nhead_s = -1", "timeouts.head_s: "),
        ("[limits]\njson_depth = 5000", "limits.json_depth: "),
        ("[models.m]\naliases = ['']", "models.m.aliases.0: "),
        ("[[backends]]\nname = 'a'\nurl = 'http://h:1/v1/'", "backends.0.url: The URL must be the base URL, without /v1"),
        ("[listen]\ntls_key_file = 'k.pem'", "listen.tls_key_file: needs listen.tls_cert_file beside it"),
        ("[listen]\ntls_cert_file = '/no/c.pem'", "listen.tls_cert_file: cannot read /no/c.pem: No such file or directory"),
        (f"[listen]\ntls_cert_file = '{__file__}'", "listen.tls_cert_file: not a certificate with its key, in PEM: "),
    ],
)
def test_problems(tmp_path: Path, text: str | bytes, said: str) -> None:
    (line,) = problems(tmp_path, text)
    assert said in line


def test_a_mark_that_editors_put_first_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_bytes(b"\xef\xbb\xbf[queue]\r\nsize = 7\r\n")
    assert load(str(path)).queue.size == 7


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            load(str(path))
        assert str(caught.value) == f"{path}: {reason}"


# -- the environment


def test_the_environment_is_over_the_file_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEWAY_LIMITS__HEADERS", "60")
    monkeypatch.setenv("LEEWAY_usage", "off")
    monkeypatch.setenv("LEEWAY_BACKENDS", '[{"name":"e","url":"http://e"}]')
    monkeypatch.setenv("LEEWAY_PORT", "tcp://10.0.0.1:80")  # as an orchestrator sets for a service of our name
    config = loaded(tmp_path, BACKEND.format("a") + "[limits]\nheaders = 50\nurl_bytes = 300\n")
    assert (config.limits.headers, config.limits.url_bytes, config.usage) == (60, 300, "off")
    assert [backend.name for backend in config.backends] == ["e"]


def test_a_token_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, "[[backends]]\nname = 'a'\nurl = 'http://h'\nsidecar_token = 987654321\n")
    assert "sidecar_token" in line
    assert "987654321" not in line


def test_an_admin_key_of_the_environment_that_no_header_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEWAY_ADMIN_KEY", "canary\nsecret")
    (line,) = problems(tmp_path, "")
    assert line == "LEEWAY_ADMIN_KEY: a key may only hold visible ASCII characters, at most 4096"


def test_a_variable_s_problem_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEWAY_LIMITS__HEADERS", "many")
    monkeypatch.setenv("LEEWAY_LIMITS__HEADERZ", "5")
    monkeypatch.setenv("LEEWAY_LIMTS__HEADERS", "5")
    monkeypatch.setenv("LEEWAY_BACKENDS", '[{"name":"e"}]')
    assert sorted(problems(tmp_path, "[queue]\nsize = -1\n")) == [
        "environment: LEEWAY_BACKENDS: backends.0.url: Field required",
        "environment: LEEWAY_LIMITS__HEADERS: limits.headers: Input should be a valid integer, unable to parse string as an "
        "integer (given: 'many')",
        "environment: LEEWAY_LIMITS__HEADERZ: limits.headerz: no such option",
        "environment: LEEWAY_LIMTS__HEADERS: no such section",
        "queue.size: Input should be greater than or equal to 0 (given: -1)",
    ]
    monkeypatch.setenv("LEEWAY_BACKENDS", "[{")
    with pytest.raises(ConfigError, match='"backends"'):
        load(None)


# -- secrets


def secret(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_secrets_may_stand_in_files(tmp_path: Path) -> None:
    path = secret(tmp_path, "k", CANARY.encode() + b"\n")
    text = BACKEND.format("a") + f'api_key_file = "{path}"\n[admin]\nkey_file = "{path}"\n'
    config = loaded(tmp_path, text)
    assert (config.backends[0].api_key, config.admin.key) == (CANARY, CANARY)
    direct = loaded(tmp_path, BACKEND.format("a") + f'api_key = "direct"\napi_key_file = "{path}"\n')
    assert direct.backends[0].api_key == "direct"


@pytest.mark.parametrize(
    ("variables", "section", "key"),
    [
        ({"LEEWAY_ADMIN_KEY": "env"}, 'key = "file"', "env"),
        ({"LEEWAY_ADMIN_KEY_FILE": "{path}"}, 'key = "file"', CANARY),
        ({"LEEWAY_ADMIN_KEY": "env", "LEEWAY_ADMIN_KEY_FILE": "{path}"}, "", "env"),
        ({"LEEWAY_ADMIN__KEY": "nested"}, 'key = "file"', "nested"),
        ({}, 'key = "file"\nkey_file = "{path}"', "file"),
        ({}, 'key_file = "{path}"', CANARY),
        ({}, 'key_file = "{path}-new"', ""),
        ({}, "", ""),
    ],
)
def test_where_the_admin_key_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], section: str, key: str
) -> None:
    path = str(secret(tmp_path, "k", CANARY.encode()))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(path=path))
    config = loaded(tmp_path, "[admin]\n" + section.format(path=path))
    assert config.admin.key == key


def test_unreadable_secrets_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = secret(tmp_path, "k", b"\xff" + CANARY.encode())
    two_lines = secret(tmp_path, "l", b"first\nsecond " + CANARY.encode())
    monkeypatch.setenv("LEEWAY_ADMIN_KEY_FILE", "/nowhere")
    text = "".join(
        BACKEND.format(name) + f'api_key_file = "{path}"\n'
        for name, path in (("a", "/nowhere"), ("b", tmp_path), ("c", binary), ("d", two_lines))
    )
    assert problems(tmp_path, text) == [
        "backends.0.api_key_file: cannot read the secret file /nowhere: No such file or directory",
        f"backends.1.api_key_file: cannot read the secret file {tmp_path}: Is a directory",
        f"backends.2.api_key_file: the secret file {binary} is not UTF-8",
        "backends.3.api_key: a key may only hold visible ASCII characters, at most 4096",
        "LEEWAY_ADMIN_KEY_FILE: cannot read the secret file /nowhere: No such file or directory",
    ]


def test_a_key_that_was_meant_otherwise_is_named(tmp_path: Path) -> None:
    """An empty file would send none, and nobody replaces variables."""
    empty = secret(tmp_path, "k", b"\n")
    text = BACKEND.format("a") + f'api_key_file = "{empty}"\n' + BACKEND.format("b") + 'api_key = "${ENGINE_KEY}"\n'
    assert problems(tmp_path, text) == [
        f"backends.0.api_key_file: the secret file {empty} is empty",
        "backends.1.api_key: variables are not replaced in this file; api_key_file names one that holds the key",
    ]
    assert loaded(tmp_path, BACKEND.format("a") + 'api_key = "$2b$x"\n').backends[0].api_key == "$2b$x"


def test_the_shown_configuration_hides_secrets(tmp_path: Path) -> None:
    text = BACKEND.format("a") + f'api_key = "{CANARY}"\nlabels = {{ zone = "1" }}\n' + BACKEND.format("b")
    text += f'[[keys]]\nsha256 = "{DIGEST}"\n[admin]\nkey = "{CANARY}"\n'
    config = loaded(tmp_path, text)
    shown = masked(config)
    assert CANARY not in str(shown)
    assert DIGEST not in str(shown)
    assert [backend["api_key"] for backend in shown["backends"]] == ["***", ""]
    assert (shown["keys"][0]["sha256"], shown["admin"]["key"]) == (DIGEST[:8] + "...", "***")
    assert shown["backends"][0]["labels"] == {"zone": "1"}
    assert set(shown) == {field.name for field in dataclasses.fields(config)}
    assert shown["limits"] == dataclasses.asdict(config.limits)
    assert CANARY not in repr(config)
    assert CANARY not in repr(BackendSection(name="a", url="http://a", api_key=CANARY))  # type: ignore[arg-type]


def test_the_schema_names_every_section() -> None:
    schema = json_schema()
    assert schema["title"] == "gateway.toml"
    assert set(schema["properties"]) == {field.name for field in dataclasses.fields(GatewayConfig)}
    assert schema["additionalProperties"] is False


def test_classes_that_clash_are_told(tmp_path: Path) -> None:
    text = f"""
        [classes.default]
        ttft_ms = 5
        [classes.a]
        models = ["m"]
        priorities = [1, 2]
        [classes.b]
        models = ["m"]
        priorities = [2]
        [[keys]]
        sha256 = "{DIGEST}"
        class = "gold"
    """
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    told = str(refused.value)
    assert "classes.default: the class default is promised nothing" in told
    assert "classes.b.models: 'm' is claimed by 'a', too" in told
    assert "classes.b.priorities: 2 is claimed by 'a', too" in told
    assert "keys.0.class: there is no [classes.gold]" in told
