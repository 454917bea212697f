"""Any server with the OpenAI face: the least that an engine must offer, and the base of the other adapters. Shell."""

from backends.base import CANNOT, ControlHttp, EngineReport, Identity, Kind, ProbeFailedError, Reply

GATEWAY = "leeway"


def ok(reply: Reply, what: str) -> Reply:
    """`reply` if it is a 2xx, else ProbeFailedError."""
    if not 200 <= reply.status < 300:
        raise ProbeFailedError(f"{what} answered {reply.status}")
    return reply


def listed_models(reply: Reply) -> tuple[tuple[str, ...], int, str]:
    """(model ids, least max_model_len or 0, owner) from a /v1/models answer. Raises ProbeFailedError."""
    data = reply.json().get("data")
    if not isinstance(data, list):
        raise ProbeFailedError("/v1/models holds no list")
    ids, lengths, owner = [], [], ""
    for card in data[:4096]:
        if isinstance(card, dict) and isinstance(card.get("id"), str):
            ids.append(card["id"])
            owner = owner or str(card.get("owned_by") or "")
            if type(card.get("max_model_len")) is int:
                lengths.append(card["max_model_len"])
    return tuple(ids), min(lengths, default=0), owner


async def told(http: ControlHttp, path: str) -> dict[str, object]:
    """The JSON object there; empty where there is none."""
    try:
        reply = await http.get(path)
        return reply.json() if reply.status == 200 else {}
    except ProbeFailedError:
        return {}


class OpenAIAdapter:
    """Identity and health by GET /v1/models; liveness of generation by one token."""

    engine = "openai"

    async def identify(self, http: ControlHttp) -> Identity:
        """What the server is. Raises ProbeFailedError."""
        models, length, owner = listed_models(ok(await http.get("/v1/models"), "/v1/models"))
        # a gateway lists nothing while it has no backend
        instance = (await told(http, "/")).get("instance") if owner == GATEWAY or not models else None
        if instance or owner == GATEWAY:
            return Identity(self.engine, models=models, max_model_len=length, instance=str(instance or GATEWAY)[:64])
        version, kind = await self.version(http), await self.kind(http)
        return Identity(self.engine, version, models, kind, length, await self.scheduling(http))

    async def version(self, http: ControlHttp) -> str:
        """The engine's version, "" when it does not say."""
        return ""

    async def kind(self, http: ControlHttp) -> Kind:
        """Whether it generates or pools."""
        return "unknown"

    async def scheduling(self, http: ControlHttp) -> str:
        """How it orders its queue, "" when it does not say. Raises nothing: a server that cannot tell is still usable."""
        return ""

    async def check(self, http: ControlHttp) -> None:
        """One health probe. Raises ProbeFailedError."""
        ok(await http.get("/v1/models"), "/v1/models")

    async def generates(self, http: ControlHttp, model: str) -> bool:
        """Whether one token comes out: the proof that a server works. Raises ProbeFailedError where that does not show."""
        body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        status = (await http.post("/v1/chat/completions", body)).status
        if status == 503:
            raise ProbeFailedError("too busy for a token")
        return 200 <= status < 500 or status in CANNOT

    async def recall(self, http: ControlHttp, engine_id: str) -> None:
        """Tell it that nobody wants the answer to the request with that id (Identity.recall). Raises ProbeFailedError."""

    async def report(self, http: ControlHttp) -> EngineReport | None:
        """What the engine says of its load and size; None where nothing is known to say it."""
        return None
