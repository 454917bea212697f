"""The command of a managed process, and the files of weights that it names. Pure.

${PORT} is the port of the backend's URL, ${MODEL} the model's name, ${LAYERS} the number of its layers on the device;
$${ stands for ${ itself. Any other ${NAME} is a mistake, not an environment variable.
"""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

_PLACE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_KNOWN = ("PORT", "MODEL", "LAYERS")
WEIGHT_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")


def port_of(url: str) -> int:
    """The port of a backend's URL. Raises ValueError where it names none that a process could listen on."""
    port = urlsplit(url).port
    if not port:
        raise ValueError(f"{url}: a managed process needs a port in its backend's URL")
    return port


def check(command: Sequence[str]) -> None:
    """Raises ValueError for an empty command, for a ${NAME} that is not known, and for what no process can be given."""
    if not command or not command[0]:
        raise ValueError("a managed process needs a command")
    for word in command:
        if "\0" in word:
            raise ValueError("the command has a NUL character")
        for found in _PLACE.finditer(word):
            if found[1] is not None and found[1] not in _KNOWN:
                raise ValueError(f"${{{found[1]}}} in the command: known are ${{PORT}}, ${{MODEL}} and ${{LAYERS}}")


def check_environment(names: Iterable[tuple[str, str]]) -> None:
    """Raises ValueError for a variable that no process can be given."""
    for name, value in names:
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"{name!r} is no environment variable, or its value has a NUL character")


def names_layers(command: Sequence[str]) -> bool:
    """Whether a part of the layers can be asked for."""
    return any(found[1] == "LAYERS" for word in command for found in _PLACE.finditer(word))


def filled(command: Sequence[str], url: str, model: str, layers: int) -> tuple[str, ...]:
    """The command as it is run. It must have passed `check`."""
    values = {"PORT": str(port_of(url)), "MODEL": model, "LAYERS": str(layers)}
    return tuple(_PLACE.sub(lambda found: "${" if found[1] is None else values[found[1]], word) for word in command)


def paths_in(command: Sequence[str]) -> tuple[str, ...]:
    """What may be a path of weights: whole words, and what follows `=` in an option."""
    return tuple(word.partition("=")[2] if word.startswith("-") and "=" in word else word for word in command[1:])
