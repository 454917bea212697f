"""The pooling face of the simulated engine: embeddings, scores, ranks, classes. A pooling server has only these.

Every input is a sequence of its own that costs a prefill; vectors and scores are fixed by the text alone.
"""

import base64
import math
import random
import struct
from collections.abc import Mapping, Sequence

from aiohttp import web

from backends.mock_ask import Ask, decode_hints, decode_inputs
from backends.mock_body import Body
from backends.mock_http import bad_field, bad_request, json_answer, read_json
from backends.mock_serving import Generation, Serving
from backends.mock_text import Prompt, count_tokens, stable_hash

EMBEDDING_SIZE = 64
_EMBEDDING_SIZE_MAX = 8192
_INPUTS_MAX = 2048
_LABELS = ("LABEL_0", "LABEL_1")


def embedding(text: str, size: int) -> list[float]:
    """A unit vector that depends on the text only."""
    source = random.Random(stable_hash("embedding", text))
    values = [source.gauss(0.0, 1.0) for _ in range(size)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]


def score(query: str, document: str) -> float:
    """How well the texts match, in 0 to 1: the words they share count, ties are broken by a hash."""
    wanted, found = set(query.lower().split()), set(document.lower().split())
    overlap = len(wanted & found) / len(wanted) if wanted else 0.0
    noise = stable_hash("score", query, document) / 2.0**64
    return 0.9 * overlap + 0.1 * noise


class PoolingFace:
    """Handlers of a server that pools instead of generating."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def routes(self) -> list[web.RouteDef]:
        """What a pooling server has."""
        by_path = {
            "/v1/embeddings": self.embeddings,
            "/pooling": self.pooling,
            "/classify": self.classify,
            "/score": self.score,
            "/v1/score": self.score,
            "/rerank": self.rerank,
            "/v1/rerank": self.rerank,
        }
        return [web.post(path, handler) for path, handler in by_path.items()]

    async def embeddings(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/embeddings, as floats or as base64 of little-endian float32."""
        values = await read_json(http)
        body = Body(values)
        encoding = body.text("encoding_format") or "float"
        if encoding not in ("float", "base64"):
            raise bad_field("encoding_format must be float or base64", "encoding_format")
        size = body.integer("dimensions", low=1) or EMBEDDING_SIZE
        if size > _EMBEDDING_SIZE_MAX:
            raise bad_request(f"dimensions must be at most {_EMBEDDING_SIZE_MAX}", "dimensions")
        prompts = decode_inputs(body, "input")
        generation = await self._run(http, body, prompts)
        data = [
            {"index": index, "object": "embedding", "embedding": _encoded(prompt, size, encoding)}
            for index, prompt in enumerate(prompts)
        ]
        return _list_answer("embd", generation, data)

    async def pooling(self, http: web.Request) -> web.StreamResponse:
        """POST /pooling."""
        body = Body(await read_json(http))
        prompts = decode_inputs(body, "input")
        generation = await self._run(http, body, prompts)
        data = [
            {"index": index, "object": "pooling", "data": embedding(prompt.text, EMBEDDING_SIZE)}
            for index, prompt in enumerate(prompts)
        ]
        return _list_answer("pool", generation, data)

    async def classify(self, http: web.Request) -> web.StreamResponse:
        """POST /classify, with two classes."""
        body = Body(await read_json(http))
        prompts = decode_inputs(body, "input")
        generation = await self._run(http, body, prompts)
        data = []
        for index, prompt in enumerate(prompts):
            share = stable_hash("class", prompt.text) / 2.0**64
            label = _LABELS[share > 0.5]
            data.append({"index": index, "label": label, "probs": [1.0 - share, share], "num_classes": len(_LABELS)})
        return _list_answer("classify", generation, data)

    async def score(self, http: web.Request) -> web.StreamResponse:
        """POST /score and /v1/score: one text against each of the others, or pair by pair."""
        body = Body(await read_json(http))
        left = _texts(body, "text_1" if "text_1" in body else "queries")
        right = _texts(body, "text_2" if "text_2" in body else "documents")
        if len(left) not in (1, len(right)):
            raise bad_request("text_1 must be one text or as many as text_2", "text_1")
        pairs = list(zip(left * len(right) if len(left) == 1 else left, right, strict=True))
        generation = await self._run(http, body, _pair_prompts(pairs))
        data = [{"index": index, "object": "score", "score": score(*pair)} for index, pair in enumerate(pairs)]
        return _list_answer("score", generation, data)

    async def rerank(self, http: web.Request) -> web.StreamResponse:
        """POST /rerank and /v1/rerank: documents by falling score."""
        body = Body(await read_json(http))
        query = body.required_text("query")
        pairs = [(query, document) for document in _texts(body, "documents")]
        top = body.integer("top_n", low=0) or len(pairs)
        generation = await self._run(http, body, _pair_prompts(pairs))
        scores = [score(*pair) for pair in pairs]
        results = [
            {
                "index": index,
                "document": {"text": pairs[index][1], "multi_modal": None},
                "relevance_score": scores[index],
            }
            for index in sorted(range(len(pairs)), key=lambda index: -scores[index])[:top]
        ]
        usage = {"prompt_tokens": generation.ask.prompt_tokens, "total_tokens": generation.ask.prompt_tokens}
        head = {"id": f"rerank-{generation.request_id}", "model": generation.model, "usage": usage}
        return json_answer({**head, "results": results})

    async def _run(self, http: web.Request, body: Body, prompts: Sequence[Prompt]) -> Generation:
        """Let the engine work through the prompts."""
        if len(prompts) > _INPUTS_MAX:
            raise bad_request(f"at most {_INPUTS_MAX} inputs a request")
        ask = Ask(body.text("model"), tuple(prompts), hints=decode_hints(body, http.headers), pooling=True)
        with self._serving.begin(http, ask) as generation:
            await generation.complete()
        return generation


def _encoded(prompt: Prompt, size: int, encoding: str) -> object:
    values = embedding(prompt.text, size)
    if encoding == "float":
        return values
    return base64.b64encode(struct.pack(f"<{size}f", *values)).decode()


def _texts(body: Body, name: str) -> list[str]:
    value = body.raw(name)
    if value is None:
        raise body.missing(name)
    items = value if isinstance(value, list) else [value]
    texts = [item.get("text") if isinstance(item, Mapping) else item for item in items]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise bad_field(f"{name} must be text or a list of texts", name)
    return [str(text) for text in texts]


def _pair_prompts(pairs: Sequence[tuple[str, str]]) -> list[Prompt]:
    return [Prompt(f"{query}\x00{document}", count_tokens((query, document))) for query, document in pairs]


def _list_answer(prefix: str, generation: Generation, data: object) -> web.Response:
    tokens = generation.ask.prompt_tokens
    return json_answer(
        {
            "id": f"{prefix}-{generation.request_id}",
            "object": "list",
            "created": generation.created_s,
            "model": generation.model,
            "data": data,
            "usage": {
                "prompt_tokens": tokens,
                "total_tokens": tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
            },
        }
    )
