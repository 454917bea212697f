"""The Anthropic face of the simulated engine: /v1/messages and /v1/messages/count_tokens, in vLLM's shapes."""

from collections.abc import Mapping

from aiohttp import web

from backends.mock_ask import Ask, Form, Tool, content_texts, decode_hints, pick_tool, prompt_of, schema_form
from backends.mock_body import Body
from backends.mock_http import ApiError, bad_field, json_answer, read_json
from backends.mock_json import fit
from backends.mock_serving import Generation, Serving
from backends.mock_stream import event, send_stream
from backends.mock_text import Prompt

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class _MessageStream:
    """One content block, of text or of a tool's input."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def opening(self) -> bytes:
        return b""

    def first(self) -> bytes:
        message = _message(self._generation, [], None, 0)
        return _named({"type": "message_start", "message": message}) + _named(
            {"type": "content_block_start", "index": 0, "content_block": _block(self._generation, "", {})}
        )

    def token(self, choice: int, position: int) -> bytes:
        reply = self._generation.replies[choice]
        text = reply.token(position)
        delta = (
            {"type": "text_delta", "text": text} if reply.tool is None else {"type": "input_json_delta", "partial_json": text}
        )
        return _named({"type": "content_block_delta", "index": 0, "delta": delta})

    def end(self, choice: int) -> bytes:
        return _named({"type": "content_block_stop", "index": 0})

    def closing(self) -> bytes:
        generation = self._generation
        delta = {"stop_reason": _stop_reason(generation), "stop_sequence": None}
        usage = _usage(generation, generation.completion_tokens)
        return _named({"type": "message_delta", "delta": delta, "usage": usage}) + _named({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        return event(error.body("/v1/messages"), "error")


class MessagesFace:
    """Handlers of the Messages API."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def routes(self) -> list[web.RouteDef]:
        """What a generating server has."""
        return [
            web.post("/v1/messages", self.create),
            web.post("/v1/messages/count_tokens", self.count_tokens),
        ]

    async def create(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/messages."""
        ask = decode_messages(await read_json(http), http.headers)
        with self._serving.begin(http, ask) as generation:
            if ask.stream:
                return await send_stream(http, generation, _MessageStream(generation))
            await generation.complete()
            return json_answer(_complete_message(generation))

    async def count_tokens(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/messages/count_tokens."""
        body = Body(await read_json(http))
        self._serving.check_model(body.text("model"))
        return json_answer({"input_tokens": _prompt(body).tokens})


def decode_messages(values: Mapping[str, object], headers: Mapping[str, str]) -> Ask:
    """The body of /v1/messages."""
    body = Body(values)
    max_tokens = body.integer("max_tokens", low=1)
    if max_tokens is None:
        raise body.missing("max_tokens")
    return Ask(
        model=body.text("model"),
        prompts=(_prompt(body),),
        max_tokens=max_tokens,
        ignore_eos=body.flag("ignore_eos"),
        stream=body.flag("stream"),
        form=_form(body),
        hints=decode_hints(body, headers),
    )


def _prompt(body: Body) -> Prompt:
    messages = body.children("messages")
    if not messages:
        raise body.missing("messages")
    texts = list(content_texts(body.raw("system")))
    for message in messages:
        message.required_text("role")
        texts += content_texts(message.raw("content"))
    return prompt_of(texts, len(messages) + ("system" in body), body.raw("tools"))


def _form(body: Body) -> Form:
    tools = tuple(Tool(offer.text("name") or "", offer.raw("input_schema")) for offer in body.children("tools"))
    choice = body.child("tool_choice")
    kind = None if choice is None else choice.text("type")
    if choice is not None and kind == "tool":
        return pick_tool(tools, choice.required_text("name"))
    if kind == "any":
        return pick_tool(tools, None)
    if kind not in (None, "auto", "none"):
        raise bad_field("tool_choice.type must be auto, any, tool or none", "tool_choice")
    output = body.child("output_config")
    wanted = None if output is None else output.child("format")
    return Form() if wanted is None else schema_form(wanted.text("type"), wanted.raw("schema"))


def _named(value: dict[str, object]) -> bytes:
    return event(value, str(value["type"]))


def _stop_reason(generation: Generation) -> str:
    reason = generation.finish_reason(0)
    if reason == "stop" and generation.replies[0].tool is not None:
        return "tool_use"
    return _STOP_REASONS.get(reason, reason)


def _usage(generation: Generation, output_tokens: int) -> dict[str, object]:
    prompt_tokens, cached = generation.ask.prompt_tokens, generation.told_cached_tokens
    if cached is None:
        return {"input_tokens": prompt_tokens, "output_tokens": output_tokens}
    return {"input_tokens": prompt_tokens - cached, "cache_read_input_tokens": cached, "output_tokens": output_tokens}


def _block(generation: Generation, text: str, arguments: object) -> dict[str, object]:
    tool = generation.replies[0].tool
    if tool is None:
        return {"type": "text", "text": text}
    return {"type": "tool_use", "id": f"toolu_{generation.request_id}", "name": tool, "input": arguments}


def _message(
    generation: Generation, content: list[dict[str, object]], stop_reason: str | None, output_tokens: int
) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{generation.request_id}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": generation.model,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": _usage(generation, output_tokens),
    }


def _complete_message(generation: Generation) -> dict[str, object]:
    reply = generation.replies[0]
    # A call cut off by max_tokens has no complete JSON: it answers with no input, as parsers of broken calls do.
    is_whole = generation.finish_reason(0) == "stop"
    arguments = fit(generation.ask.form.schema, reply.seed) if reply.tool is not None and is_whole else {}
    content = [_block(generation, generation.text(0), arguments)]
    return _message(generation, content, _stop_reason(generation), generation.completion_tokens)
