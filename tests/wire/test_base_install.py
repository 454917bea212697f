"""What `pip install .` brings along: light, as locked, and nothing of the extras."""

import re
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

import gateway

ROOT = Path(__file__).parents[2]
MB = 1e6
HEAVY = {"torch", "numba", "numpy", "transformers", "onnxruntime", "tokenizers", "vllm"}
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ]+)(.*(?:\n .*)*)", re.MULTILINE)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(file: str) -> dict[str, tuple[str, str]]:
    """Name to (version, what stands below it)."""
    text = (ROOT / "requirements" / file).read_text()
    return {canonical(name): (version, rest) for name, version, rest in _PIN.findall(text)}


def needed() -> set[str]:
    """The distributions that ours needs without any extra, and theirs."""
    found: set[str] = set()
    open_ = ["leeway-gateway"]
    while open_:
        for requirement in map(Requirement, distribution(open_.pop()).requires or []):
            name = canonical(requirement.name)
            if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                found.add(name)
                open_.append(name)
    return found


def size_bytes(name: str) -> int:
    """What a distribution's files take."""
    paths = [Path(str(file.locate())) for file in distribution(name).files or []]
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_the_lock_is_whole_pinned_by_hashes_and_the_same_for_developers() -> None:
    base, developers = locked("base.lock"), locked("dev.lock")
    assert needed() <= base.keys(), "other versions of Python may need less"
    assert base.keys() <= developers.keys()
    for name, (version, rest) in developers.items():
        assert "--hash=sha256:" in rest, name
        assert name not in base or base[name][0] == version
    assert all("--hash=sha256:" in rest for _, rest in base.values())


def test_it_is_light() -> None:
    """80 MB with the gateway itself, its compiled modules and the length encoder; no torch, no numba."""
    base = locked("base.lock")
    assert base.keys().isdisjoint(HEAVY)
    ours = Path(gateway.__file__).parents[1]
    own = [path for package in ("gateway", "predictor", "backends") for path in (ours / package).rglob("*") if path.is_file()]
    own += ours.glob("*.so")
    total = sum(map(size_bytes, base)) + sum(path.stat().st_size for path in own)
    assert 20 * MB < total <= 80 * MB, f"{total / MB:.1f} MB"
