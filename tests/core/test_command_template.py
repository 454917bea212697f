"""Command templates of managed processes."""

import pytest

from backends.command_template import check, filled, names_layers, paths_in, port_of

COMMAND = ("llama-server", "--port", "${PORT}", "-ngl", "${LAYERS}", "--alias=${MODEL}", "-m", "w.gguf")
URL = "http://127.0.0.1:8101"


def test_places_are_filled() -> None:
    check(COMMAND)
    filled_in = filled(COMMAND, URL, "smol", 12)
    assert filled_in == ("llama-server", "--port", "8101", "-ngl", "12", "--alias=smol", "-m", "w.gguf")


@pytest.mark.parametrize(
    ("word", "becomes"),
    [
        ("$PORT", "$PORT"),
        ("$${PORT}", "${PORT}"),
        ("${PORT}/${PORT}", "8101/8101"),
        ("a${MODEL}b", "asmolb"),
        ("${", "${"),
        ("", ""),
    ],
)
def test_one_word(word: str, becomes: str) -> None:
    check(("program", word))
    assert filled(("program", word), URL, "smol", 1) == ("program", becomes)


def test_what_is_filled_in_is_not_read_again() -> None:
    assert filled(("x", "${MODEL}"), URL, "${PORT}", 1) == ("x", "${PORT}")


@pytest.mark.parametrize(
    ("command", "told"),
    [((), "needs a command"), (("",), "needs a command"), (("x", "${HOME}"), r"\$\{HOME\}"), (("x", "${port}"), "known are")],
)
def test_mistakes_are_told(command: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check(command)


def test_only_a_command_that_names_layers_can_take_a_part() -> None:
    assert names_layers(COMMAND)
    assert not names_layers(("x", "${PORT}", "$${LAYERS}"))


@pytest.mark.parametrize(
    ("url", "port"), [("http://a:80", 80), ("https://[::1]:8443/v1", 8443), ("http://a", None), ("http://a:0", None)]
)
def test_the_port_is_the_urls(url: str, port: int | None) -> None:
    if port is None:
        with pytest.raises(ValueError, match="needs a port"):
            port_of(url)
    else:
        assert port_of(url) == port


def test_words_that_may_be_paths() -> None:
    assert paths_in(("x", "-m", "w.gguf", "--model=/a/b", "--flag", "=c")) == ("-m", "w.gguf", "/a/b", "--flag", "=c")
