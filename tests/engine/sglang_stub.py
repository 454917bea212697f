"""A stub of SGLang's HTTP server that judges requests and shapes answers by the request models of the installed wheel.

Runs in the engine's environment, where the wheel lies without its CUDA dependencies: only the file with the pydantic
models is loaded, with the one helper that it imports stood in for. Timing and text mean nothing here; fields do.
usage: sglang_stub.py PORT [generate|embed]
"""

import importlib.util
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ValidationError

MODEL = "sglang-stub"


def load_models() -> Any:
    """The wheel's own module of request models, without importing the rest of the package."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "srt" / "entrypoints" / "openai" / "protocol.py"
    helper = types.ModuleType("sglang.utils")
    helper.convert_json_schema_to_str = lambda schema: schema if isinstance(schema, str) else json.dumps(schema)  # type: ignore[attr-defined]
    sys.modules["sglang"] = types.ModuleType("sglang")
    sys.modules["sglang.utils"] = helper
    loaded = importlib.util.spec_from_file_location("sglang_models", path)
    assert loaded is not None
    assert loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    sys.modules["sglang_models"] = module
    loaded.loader.exec_module(module)
    return module


models = load_models()
app = FastAPI()
generation = sys.argv[2:] != ["embed"]
seen: list[dict[str, Any]] = []


@app.get("/health")
async def health() -> dict[str, str]:
    return {}


@app.get("/model_info")
async def model_info() -> dict[str, Any]:
    return {"model_path": MODEL, "served_model_name": MODEL, "is_generation": generation}


@app.get("/server_info")
async def server_info() -> dict[str, Any]:
    return {"version": version("sglang"), "internal_states": []}


@app.get("/v1/models")
async def list_models() -> Any:
    return models.ModelList(data=[models.ModelCard(id=MODEL, root=MODEL, max_model_len=4096)])


@app.get("/seen")
async def requests_seen() -> list[dict[str, Any]]:
    """For the test: what arrived, as the wheel's models read it."""
    return seen


async def _read(request: Request, kind: type[BaseModel]) -> Any:
    body = await request.body()
    parsed = kind.model_validate_json(body)
    headers = {name: value for name, value in request.headers.items() if name.startswith("x-") or name == "authorization"}
    seen.append({"path": request.url.path, "body": json.loads(body), "extra": parsed.model_extra or {}, "headers": headers})
    return parsed


@app.exception_handler(ValidationError)
async def invalid(_: Request, error: ValidationError) -> JSONResponse:
    said = models.ErrorResponse(message=str(error.errors()[0]["msg"]), type="Bad Request", code=400)
    return JSONResponse(said.model_dump(), status_code=400)


def _usage() -> Any:
    return models.UsageInfo(prompt_tokens=5, completion_tokens=2, total_tokens=7)


def _chunk(delta: dict[str, Any], finish: str | None) -> Any:
    choice = models.ChatCompletionResponseStreamChoice(index=0, delta=models.DeltaMessage(**delta), finish_reason=finish)
    return models.ChatCompletionStreamResponse(id="stub", model=MODEL, choices=[choice])


def _chat_events(asked_usage: bool) -> Any:
    events = [_chunk({"role": "assistant", "content": ""}, None), _chunk({"content": "Hello"}, None), _chunk({}, "stop")]
    if asked_usage:
        events.append(models.ChatCompletionStreamResponse(id="stub", model=MODEL, choices=[], usage=_usage()))
    for event in events:
        yield f"data: {event.model_dump_json()}\n\n"
    yield "data: [DONE]\n\n"


if generation:

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        asked = await _read(request, models.ChatCompletionRequest)
        if asked.stream:
            usage = bool(asked.stream_options and asked.stream_options.include_usage)
            return StreamingResponse(_chat_events(usage), media_type="text/event-stream")
        message = models.ChatMessage(role="assistant", content="Hello")
        choice = models.ChatCompletionResponseChoice(index=0, message=message, finish_reason="stop")
        return models.ChatCompletionResponse(id="stub", model=MODEL, choices=[choice], usage=_usage())

    @app.post("/v1/completions")
    async def completions(request: Request) -> Any:
        await _read(request, models.CompletionRequest)
        choice = models.CompletionResponseChoice(index=0, text="Hello", finish_reason="stop")
        return models.CompletionResponse(id="stub", model=MODEL, choices=[choice], usage=_usage())

    @app.post("/v1/responses")
    async def responses(request: Request) -> Any:
        asked = await _read(request, models.ResponsesRequest)
        return {"id": "resp_stub1", "object": "response", "model": asked.model, "status": "completed", "output": []}

    @app.get("/v1/responses/{response_id}")
    async def stored(response_id: str) -> Any:
        return {"id": response_id, "object": "response", "model": MODEL, "status": "completed", "output": []}

else:

    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> Any:
        await _read(request, models.EmbeddingRequest)
        vector = models.EmbeddingObject(embedding=[0.5, 0.25], index=0)
        return models.EmbeddingResponse(data=[vector], model=MODEL, usage=_usage())

    @app.post("/v1/rerank")
    async def rerank(request: Request) -> Any:
        asked = await _read(request, models.V1RerankReqInput)
        return [models.RerankResponse(score=1.0, document=str(text), index=i) for i, text in enumerate(asked.documents)]

    @app.post("/v1/score")
    async def score(request: Request) -> Any:
        await _read(request, models.ScoringRequest)
        return models.ScoringResponse(scores=[[0.5]], model=MODEL, usage=_usage())


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="info")
