"""The Responses face of the simulated engine: /v1/responses with its store, plain, streamed and in the background."""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from backends.mock_ask import Ask, Form, Tool, content_texts, decode_hints, pick_tool, prompt_of, schema_form
from backends.mock_body import Body
from backends.mock_http import ApiError, bad_field, bad_request, json_answer, not_found, read_json
from backends.mock_responses_shape import Call, ResponseStream, repeated_settings, response_json
from backends.mock_serving import Generation, Serving
from backends.mock_stream import send_stream


@dataclass(slots=True)
class _Stored:
    """A response that can be fetched again, with the conversation that led to it."""

    body: dict[str, object]
    texts: tuple[str, ...]
    messages: int
    task: asyncio.Task[None] | None = None

    def finish(self, call: Call, generation: Generation) -> None:
        """Take in the answer."""
        self.body = response_json(call, generation, None)
        self.texts = (*self.texts, generation.text(0))
        self.messages += 1


class ResponsesFace:
    """Handlers of the Responses API, and the bounded store behind them; the oldest response goes first."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[web.RouteDef]:
        """What a generating server has."""
        return [
            web.post("/v1/responses", self.create),
            web.get("/v1/responses/{id}", self.fetch),
            web.post("/v1/responses/{id}/cancel", self.cancel),
            web.delete("/v1/responses/{id}", self.delete),
        ]

    async def close(self) -> None:
        """End the background work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def create(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        body = Body(await read_json(http))
        call, texts, messages = self._decode(body, http.headers)
        generation = self._serving.begin(http, call.ask)
        stored = _Stored(response_json(call, generation, "in_progress"), texts, messages)
        if call.background:
            return self._start_background(call, generation, stored)
        with generation:
            if call.ask.stream:
                answer = await send_stream(http, generation, ResponseStream(call, generation))
            else:
                await generation.complete()
                answer = None
            if not generation.running:
                stored.finish(call, generation)
        if call.store:
            self._keep(call.id, stored)
        return json_answer(stored.body) if answer is None else answer

    async def fetch(self, http: web.Request) -> web.StreamResponse:
        """GET /v1/responses/{id}."""
        return json_answer(self._find(http.match_info["id"]).body)

    async def cancel(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/responses/{id}/cancel; only what runs in the background can be cancelled."""
        stored = self._find(http.match_info["id"])
        if stored.task is None:
            raise ApiError(400, "invalid_request_error", "This response does not run in the background.", "response_id")
        if not stored.task.done():
            stored.body = {**stored.body, "status": "cancelled"}
            stored.task.cancel()
            await asyncio.wait({stored.task})
        return json_answer(stored.body)

    async def delete(self, http: web.Request) -> web.StreamResponse:
        """DELETE /v1/responses/{id}."""
        response_id = http.match_info["id"]
        stored = self._find(response_id)
        if stored.task is not None:
            stored.task.cancel()
        del self._stored[response_id]
        return json_answer({"id": response_id, "object": "response", "deleted": True})

    def _decode(self, body: Body, headers: Mapping[str, str]) -> tuple[Call, tuple[str, ...], int]:
        texts, messages = _input_texts(body)
        previous_id = body.text("previous_response_id")
        if previous_id is not None:
            previous = self._find(previous_id)
            texts, messages = previous.texts + texts, previous.messages + messages
        ask = Ask(
            model=body.text("model"),
            prompts=(prompt_of(texts, messages, body.raw("tools")),),
            max_tokens=body.integer("max_output_tokens", low=1),
            ignore_eos=body.flag("ignore_eos"),
            stream=body.flag("stream"),
            form=_form(body),
            hints=decode_hints(body, headers),
        )
        response_id = body.text("request_id") or f"resp_{uuid.uuid4().hex}"
        call = Call(response_id, ask, body.flag("store", default=True), body.flag("background"), repeated_settings(body))
        if call.background and not call.store:
            raise bad_request("background needs store", "background")
        return call, texts, messages

    def _start_background(self, call: Call, generation: Generation, stored: _Stored) -> web.Response:
        stored.task = asyncio.get_running_loop().create_task(self._run(call, generation, stored))
        self._tasks.add(stored.task)
        stored.task.add_done_callback(self._tasks.discard)
        self._keep(call.id, stored)
        return json_answer({**stored.body, "status": "queued"})

    async def _run(self, call: Call, generation: Generation, stored: _Stored) -> None:
        with generation:
            try:
                await generation.complete()
                stored.finish(call, generation)
            except ApiError as error:
                failure = {"code": "server_error", "message": error.message}
                stored.body = {**stored.body, "status": "failed", "error": failure}

    def _keep(self, response_id: str, stored: _Stored) -> None:
        self._stored[response_id] = stored
        while len(self._stored) > self._serving.config.stored_responses_max:
            _, oldest = self._stored.popitem(last=False)
            if oldest.task is not None:
                oldest.task.cancel()

    def _find(self, response_id: str) -> _Stored:
        if response_id not in self._stored:
            raise not_found(f"Response with id '{response_id}' not found.", "response_id")
        return self._stored[response_id]


def _input_texts(body: Body) -> tuple[tuple[str, ...], int]:
    """The texts of instructions and input, and how many messages those are."""
    value = body.raw("input")
    if isinstance(value, str):
        texts, messages = [value], 1
    elif isinstance(value, list) and value:
        texts, messages = list(content_texts(value)), len(value)
    else:
        raise bad_field("input must be text or a list of items", "input")
    instructions = body.text("instructions")
    return ((instructions, *texts), messages + 1) if instructions else (tuple(texts), messages)


def _form(body: Body) -> Form:
    tools = tuple(
        Tool(name, offer.raw("parameters"))
        for offer in body.children("tools")
        if offer.text("type") == "function" and (name := offer.text("name"))
    )
    choice = body.raw("tool_choice")
    if choice == "required":
        return pick_tool(tools, None)
    if isinstance(choice, dict):
        return pick_tool(tools, Body(choice, "tool_choice.").text("name"))
    text = body.child("text")
    wanted = None if text is None else text.child("format")
    return Form() if wanted is None else schema_form(wanted.text("type"), wanted.raw("schema"))
