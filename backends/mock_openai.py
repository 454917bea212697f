"""The OpenAI face of the simulated engine: /v1/chat/completions, /v1/completions, /v1/models, in vLLM's shapes."""

from aiohttp import web

from backends.mock_ask import Ask, decode_chat, decode_completion
from backends.mock_config import MockConfig
from backends.mock_http import ApiError, json_answer, read_json
from backends.mock_serving import Generation, Serving
from backends.mock_stream import DONE, event, send_stream


def usage_json(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> dict[str, object]:
    """The usage object of both faces; `cached_tokens` None leaves the details out."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else {"cached_tokens": cached_tokens},
    }


class _OpenAiStream:
    """What chat and completion streams share: usage in chunks and at the end, [DONE]."""

    kind = ""
    prefix = ""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._ask = generation.ask
        self._head: dict[str, object] = {
            "id": f"{self.prefix}-{generation.request_id}",
            "object": self.kind,
            "created": generation.created_s,
            "model": generation.model,
        }

    def opening(self) -> bytes:
        return b""

    def closing(self) -> bytes:
        if not self._ask.include_usage:
            return DONE
        generation = self._generation
        usage = usage_json(self._ask.prompt_tokens, generation.completion_tokens, generation.told_cached_tokens)
        return event({**self._head, "choices": [], "usage": usage}) + DONE

    def failure(self, error: ApiError) -> bytes:
        return event(error.body("")) + DONE

    def chunk(self, choice: dict[str, object], choice_tokens: int) -> bytes:
        """One chunk; with continuous usage it also tells how far its choice is."""
        body = {**self._head, "choices": [choice]}
        if self._ask.continuous_usage:
            body["usage"] = usage_json(self._ask.prompt_tokens, choice_tokens)
        return event(body)


class _ChatStream(_OpenAiStream):
    """Role chunk, one chunk a token, a chunk with the finish reason."""

    kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def first(self) -> bytes:
        parts = []
        for choice, reply in enumerate(self._generation.replies):
            parts.append(self._delta(choice, {"role": "assistant", "content": ""}, 0))
            if reply.tool is not None:
                call = {**_tool_call(self._generation, choice, ""), "index": 0}
                parts.append(self._delta(choice, {"tool_calls": [call]}, 0))
        return b"".join(parts)

    def token(self, choice: int, position: int) -> bytes:
        reply = self._generation.replies[choice]
        text = reply.token(position)
        if reply.tool is None:
            return self._delta(choice, {"content": text}, position + 1)
        return self._delta(choice, {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}, position + 1)

    def end(self, choice: int) -> bytes:
        tokens = self._generation.tracks[choice].produced
        return self._delta(choice, {}, tokens, chat_finish_reason(self._generation, choice))

    def _delta(self, choice: int, delta: dict[str, object], tokens: int, reason: str | None = None) -> bytes:
        return self.chunk({"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}, tokens)


class _CompletionStream(_OpenAiStream):
    """One chunk a token, a chunk with the finish reason."""

    kind = "text_completion"
    prefix = "cmpl"

    def first(self) -> bytes:
        return b""

    def token(self, choice: int, position: int) -> bytes:
        return self._text(choice, self._generation.replies[choice].token(position), position + 1, None)

    def end(self, choice: int) -> bytes:
        reason = self._generation.finish_reason(choice)
        return self._text(choice, "", self._generation.tracks[choice].produced, reason)

    def _text(self, choice: int, text: str, tokens: int, reason: str | None) -> bytes:
        body: dict[str, object] = {"index": choice, "text": text, "logprobs": None, "finish_reason": reason}
        return self.chunk({**body, "stop_reason": None}, tokens)


class OpenAiFace:
    """Handlers of chat and text completions."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def routes(self) -> list[web.RouteDef]:
        """What a generating server has."""
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completions),
        ]

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        ask = decode_chat(await read_json(http), http.headers)
        with self._serving.begin(http, ask) as generation:
            if ask.stream:
                return await send_stream(http, generation, _ChatStream(generation))
            await generation.complete()
            return json_answer(_chat_json(ask, generation))

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        ask = decode_completion(await read_json(http), http.headers)
        with self._serving.begin(http, ask) as generation:
            if ask.stream:
                return await send_stream(http, generation, _CompletionStream(generation))
            await generation.complete()
            return json_answer(_completion_json(ask, generation))


def models_json(config: MockConfig, created_s: int) -> dict[str, object]:
    """The body of GET /v1/models: every name, all of one model."""
    data: list[dict[str, object]] = [
        {
            "id": name,
            "object": "model",
            "created": created_s,
            "owned_by": "vllm",
            "root": config.models[0],
            "parent": None,
            "max_model_len": config.limits.max_model_len,
            "permission": [],
        }
        for name in config.models
    ]
    return {"object": "list", "data": data}


def chat_finish_reason(generation: Generation, choice: int) -> str:
    """A completed tool call has a reason of its own."""
    reason = generation.finish_reason(choice)
    return "tool_calls" if reason == "stop" and generation.replies[choice].tool is not None else reason


def _tool_call(generation: Generation, choice: int, arguments: str) -> dict[str, object]:
    function = {"name": generation.replies[choice].tool, "arguments": arguments}
    return {"id": f"chatcmpl-tool-{generation.request_id}-{choice}", "type": "function", "function": function}


def _chat_json(ask: Ask, generation: Generation) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{generation.request_id}",
        "object": "chat.completion",
        "created": generation.created_s,
        "model": generation.model,
        "choices": [_chat_choice(generation, choice) for choice in range(len(generation.replies))],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage_json(ask.prompt_tokens, generation.completion_tokens, generation.told_cached_tokens),
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }


def _chat_choice(generation: Generation, choice: int) -> dict[str, object]:
    text = generation.text(choice)
    is_call = generation.replies[choice].tool is not None
    message: dict[str, object] = {
        "role": "assistant",
        "content": None if is_call else text,
        "refusal": None,
        "tool_calls": [_tool_call(generation, choice, text)] if is_call else [],
    }
    return {
        "index": choice,
        "message": message,
        "logprobs": None,
        "finish_reason": chat_finish_reason(generation, choice),
        "stop_reason": None,
    }


def _completion_json(ask: Ask, generation: Generation) -> dict[str, object]:
    choices = [
        {
            "index": choice,
            "text": generation.text(choice),
            "logprobs": None,
            "finish_reason": generation.finish_reason(choice),
            "stop_reason": None,
            "prompt_logprobs": None,
        }
        for choice in range(len(generation.replies))
    ]
    return {
        "id": f"cmpl-{generation.request_id}",
        "object": "text_completion",
        "created": generation.created_s,
        "model": generation.model,
        "choices": choices,
        "system_fingerprint": None,
        "usage": usage_json(ask.prompt_tokens, generation.completion_tokens, generation.told_cached_tokens),
    }
