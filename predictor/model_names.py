"""Under which name a served model is known to an encoder that reads which model answers. Pure.

One model is served under many names: with its organisation or a folder before it, a host behind it, packed to fewer bits,
in capitals or not. What is left is compared as it is: a size or a kind more or less is another model, and a name that an
encoder was not trained on is no name to it.
"""

import re
from zlib import crc32

CHARS_MAX = 200
_PACKED = re.compile(r"(?:[-.](?:fp8|fp16|bf16|awq|gptq|int4|int8|4bit|8bit|bnb|mlx|quantized|dynamic|w\d+a\d+|q\d\w*|gguf))+$")
_POINT = re.compile(r"(?<=\d)_(?=\d)")
_ENDINGS = (("-inst", "-instruct"), ("-instruct-turbo", "-instruct"))


def known_name(served: str) -> str:
    """Small letters, without organisation or folder, host (`@...`) and the number of bits; "" stays "".

    >>> known_name("meta-llama/Llama-3.1-8B-Instruct")
    'llama-3.1-8b-instruct'
    """
    name = served[-CHARS_MAX:].strip().rstrip("/").rpartition("/")[2].lower().partition("@")[0].strip()
    name = _POINT.sub(".", _PACKED.sub("", name))
    if name.startswith("meta-llama"):
        name = name.removeprefix("meta-")
    for ending, whole in _ENDINGS:
        if name.endswith(ending):
            name = name.removesuffix(ending) + whole
    return name


def model_key(served: str) -> int:
    """A number of 32 bits for a model, the same for all its names; 0: none."""
    name = known_name(served)
    return crc32(name.encode("utf-8", "surrogatepass")) if name else 0
