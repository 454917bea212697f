"""Fixtures of the engine tests: one set of real servers and one gateway for the whole run.

Nothing here is skipped: where the engine is not installed, every test fails with the command that installs it.
LEEWAY_ENGINE and LEEWAY_ENGINE_MODELS name the folders of tests/engine/setup.sh (default .engine and .models in the project),
LEEWAY_PYTHON the interpreter that runs the gateway (default: the one that runs pytest).
"""

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anthropic
import openai
import pytest

from tests.engine.engine_http import STREAM_TIMEOUT_S, Target
from tests.engine.engine_record import Recorder
from tests.engine.engine_run import (
    GENERATE_ARGS,
    GENERATE_ENV,
    POOLING_ARGS,
    SLEEPING_ENV,
    Engines,
    Gateway,
    Portal,
    Servers,
    SidecarProcess,
    start_all,
    stop_all,
)
from tests.engine.sglang_server import Sglangs, two_servers

LOGS = pytest.StashKey[Path]()
TAIL_CHARS = 2000


def pytest_configure() -> None:
    """A run that is told to end (a time limit, a cancelled job) must still stop its servers: treat it as ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of every process's output beside a failure."""
    report = yield
    folder = item.config.stash.get(LOGS, None)
    if report.failed and folder is not None:
        for path in sorted(folder.glob("*.log")):
            report.sections.append((f"end of {path.name}", path.read_text(errors="replace")[-TAIL_CHARS:]))
    return report


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Where logs and the gateway's file are."""
    path = tmp_path_factory.mktemp("engine")
    pytestconfig.stash[LOGS] = path
    return path


@pytest.fixture(scope="session")
def portal() -> Iterator[Portal]:
    made = Portal()
    yield made
    made.close()


@pytest.fixture(scope="session")
def engines(portal: Portal, folder: Path) -> Engines:
    return Engines(portal, folder)


@pytest.fixture(scope="session")
def sglangs(folder: Path) -> Iterator[Sglangs]:
    """Both started at once."""
    made = two_servers(folder)
    every = (made.smol, made.tiny)
    try:
        for server in every:
            server.start()
        for server in every:
            server.wait_ready()
        yield made
    finally:
        for server in every:
            server.kill()


@pytest.fixture(scope="session")
def servers(engines: Engines) -> Iterator[Servers]:
    """Started at once: three take little longer than one, since much of a start is waiting."""
    made = Servers(
        engines.publishing("smol-a", GENERATE_ARGS, (*GENERATE_ENV, *SLEEPING_ENV)),
        engines.publishing("smol-b", GENERATE_ARGS, GENERATE_ENV),
        engines.server("embed", "tiny", "tiny-embed", POOLING_ARGS, SLEEPING_ENV),
    )
    every = [*made.generating, made.embed]
    try:
        start_all(engines.portal, every)
        yield made
    finally:
        stop_all(engines.portal, every)


@pytest.fixture(scope="session")
def sidecars(folder: Path, engines: Engines, servers: Servers) -> Iterator[tuple[SidecarProcess, SidecarProcess]]:
    """One beside each of the generating servers."""
    one, two = (SidecarProcess(folder, server.name, engines.state_path(server.name)) for server in servers.generating)
    try:
        one.start()
        two.start()
        yield one, two
    finally:
        one.kill()
        two.kill()


@contextmanager
def running(gateway: Gateway) -> Iterator[Gateway]:
    try:
        gateway.start()
        yield gateway
    finally:
        code = gateway.stop()
    assert code == 0, f"the gateway ended with {code}"


@pytest.fixture(scope="session")
def gateway(folder: Path, servers: Servers) -> Iterator[Gateway]:
    """The gateway in front of all three."""
    backends = {server.name: server.url for server in (*servers.generating, servers.embed)}
    with running(Gateway(folder, "gateway", backends)) as started:
        yield started


@pytest.fixture(scope="session")
def sidecar_records(sidecars: tuple[SidecarProcess, SidecarProcess]) -> Iterator[tuple[Recorder, Recorder]]:
    """What each sidecar was asked and said."""
    one, two = (Recorder(sidecar.target.url, whole=True) for sidecar in sidecars)
    yield one, two
    one.close()
    two.close()


@pytest.fixture(scope="session")
def guided(folder: Path, servers: Servers, sidecar_records: tuple[Recorder, Recorder]) -> Iterator[Gateway]:
    """A gateway that asks the sidecars of both generating servers for each request."""
    backends = {server.name: server.url for server in servers.generating}
    sidecars = {server.name: record.url for server, record in zip(servers.generating, sidecar_records, strict=True)}
    # a busy machine makes steps longer than any profile says, and the states that are published older
    rule = '[models."*"]\npolicy = "po2"\nbinding = "early"\nprobe_s = 10.0\nstale_s = 60.0\nerror_limit = 1000.0\n'
    with running(Gateway(folder, "guided", backends, sidecars, rule)) as started:
        yield started


@pytest.fixture(scope="module")
def recorder(servers: Servers) -> Iterator[Recorder]:
    """What one engine was asked and said."""
    made = Recorder(servers.smol_a.url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def recorded(folder: Path, recorder: Recorder) -> Iterator[Target]:
    """A gateway of its own in front of the recorder."""
    with running(Gateway(folder, "recorded", {"recorder": recorder.url})) as started:
        yield started.target


@pytest.fixture(scope="session")
def through(gateway: Gateway) -> Target:
    """Requests through the gateway."""
    return gateway.target


@pytest.fixture(scope="session")
def direct(servers: Servers) -> Target:
    """The same requests to an engine itself, for comparison."""
    return servers.smol_a.target


@pytest.fixture
def sdk(through: Target) -> Iterator[openai.OpenAI]:
    """OpenAI's client, without its own retries: a fault must be seen."""
    with openai.OpenAI(base_url=f"{through.url}/v1", api_key=through.key, max_retries=0, timeout=STREAM_TIMEOUT_S) as client:
        yield client


@pytest.fixture
def claude_sdk(through: Target) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client on the same gateway."""
    with anthropic.Anthropic(base_url=through.url, api_key=through.key, max_retries=0, timeout=STREAM_TIMEOUT_S) as client:
        yield client
