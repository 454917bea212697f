"""A stub of SGLang's HTTP server that judges requests and shapes answers by the request models of the installed wheel.

Runs in the engine's environment, where the wheel lies without its CUDA dependencies: only the file with the pydantic
models is loaded, with the one helper that it imports stood in for. Timing and text mean nothing here; fields do.
The header overrides are applied by the wheel's own function, `/order` sorts what was seen by the wheel's own rule, and
each name that `/server_info` has here stands in the source of what puts it there.
usage: sglang_stub.py PORT [generate|embed|priority|priority-low-first]
"""

import ast
import json
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ValidationError
from sglang_wheel import WHEEL, load, stand_in

MODEL = "sglang-stub"


def _schema_text(schema: object) -> object:
    return schema if isinstance(schema, str) else json.dumps(schema)


def load_models() -> Any:
    """The wheel's own module of request models, without importing the rest of the package."""
    stand_in("sglang")
    stand_in("sglang.utils", convert_json_schema_to_str=_schema_text)
    return load("sglang_models", WHEEL / "srt" / "entrypoints" / "openai" / "protocol.py")


def queue_rule(low_first: bool) -> Any:
    """How a list of waiting requests is sorted with `--enable-priority-scheduling`: the policy's own function and sign, cut
    out of its source, since the module cannot be imported without a GPU's libraries."""
    tree = ast.parse((WHEEL / "srt" / "managers" / "schedule_policy.py").read_text())
    nodes = [*ast.walk(tree)]
    rule = next(n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == "_sort_by_priority_and_fcfs")
    rule.decorator_list, rule.returns = [], None
    for argument in rule.args.args:
        argument.annotation = None
    sign = next(n.value for n in nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "self.priority_sign")
    names: dict[str, Any] = {"schedule_low_priority_values_first": low_first}
    exec(compile(ast.Module([rule], []), "schedule_policy", "exec"), names)
    factor = eval(compile(ast.Expression(sign), "schedule_policy", "eval"), names)
    return lambda waiting: names[rule.name](waiting, factor)


def names_in(path: str, function: str = "") -> set[str]:
    """All texts in a source file of the wheel, or in one function of it: the names of what is put into an answer there."""
    nodes: list[ast.AST] = [ast.parse((WHEEL / "srt" / path).read_text())]
    if function:
        nodes = [n for n in ast.walk(nodes[0]) if isinstance(n, ast.FunctionDef) and n.name == function]
    found = [node for top in nodes for node in ast.walk(top)]
    return {str(node.value) for node in found if isinstance(node, ast.Constant)}


def server_info_of(arguments: dict[str, Any], scheduler: dict[str, Any], states: list[dict[str, Any]]) -> dict[str, Any]:
    """/server_info as the wheel composes it: resolved arguments, what a scheduler says at its start, each one's state."""
    known = (
        (names_in("arg_groups/field_order.py"), arguments),
        (names_in("managers/scheduler.py", "get_init_info"), scheduler),
        *((names_in("managers/scheduler_components/internal_state.py"), state) for state in states),
    )
    for names, told in known:
        assert set(told) <= names, sorted(set(told) - names)
    return {**arguments, **scheduler, "internal_states": states, "version": version("sglang")}


models = load_models()
overrides = load("sglang_overrides", WHEEL / "srt" / "entrypoints" / "request_headers.py")
app = FastAPI()
mode = sys.argv[2] if len(sys.argv) > 2 else "generate"
generation = mode != "embed"
low_first = mode == "priority-low-first"
seen: list[dict[str, Any]] = []
INFO = server_info_of(
    {
        "enable_priority_scheduling": mode.startswith("priority"),
        "schedule_low_priority_values_first": low_first,
        "schedule_policy": "fcfs",
        "dp_size": 1,
        "page_size": 16,
        "chunked_prefill_size": 1024,
        "max_prefill_tokens": 16384,
        "max_running_requests": None,
        "enable_session_radix_cache": False,
    },
    {"max_total_num_tokens": 64_000, "max_req_input_len": 4090},
    [{"effective_max_running_requests_per_dp": 48}],
)


@app.get("/health")
async def health() -> dict[str, str]:
    return {}


@app.get("/model_info")
async def model_info() -> dict[str, Any]:
    return {"model_path": MODEL, "served_model_name": MODEL, "is_generation": generation}


@app.get("/server_info")
async def server_info() -> dict[str, Any]:
    return INFO


@app.get("/v1/models")
async def list_models() -> Any:
    return models.ModelList(data=[models.ModelCard(id=MODEL, root=MODEL, max_model_len=4096)])


@app.get("/seen")
async def requests_seen() -> list[dict[str, Any]]:
    """For the test: what arrived, as the wheel's models read it."""
    return seen


@app.get("/order")
async def order() -> list[str]:
    """For the test: the request ids of all that arrived, as the wheel's own rule would let them run."""
    waiting = [
        SimpleNamespace(
            priority=one["priority"],
            time_stats=SimpleNamespace(wait_queue_entry_time=number),
            name=one["headers"]["x-request-id"],
        )
        for number, one in enumerate(seen)
    ]
    queue_rule(low_first)(waiting)
    return [one.name for one in waiting]


async def _read(request: Request, kind: type[BaseModel]) -> Any:
    body = await request.body()
    parsed = kind.model_validate_json(body)
    headers = {name: value for name, value in request.headers.items() if name.startswith("x-") or name == "authorization"}
    overrides.apply_header_overrides(parsed, request.headers)
    priority = getattr(parsed, "priority", None)
    record = {"path": request.url.path, "body": json.loads(body), "extra": parsed.model_extra or {}, "headers": headers}
    seen.append({**record, "priority": priority})
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
