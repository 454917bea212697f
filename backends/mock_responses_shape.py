"""Shapes of the Responses API: the response object and its stream of numbered events."""

from collections.abc import Mapping
from dataclasses import dataclass

from backends.mock_ask import Ask
from backends.mock_body import Body
from backends.mock_http import ApiError
from backends.mock_serving import Generation
from backends.mock_stream import event


@dataclass(frozen=True, slots=True)
class Call:
    """A decoded request, and the settings that the response repeats."""

    id: str
    ask: Ask
    store: bool
    background: bool
    settings: Mapping[str, object]


def repeated_settings(body: Body) -> dict[str, object]:
    """The fields of a request that its response shows again."""
    return {
        "instructions": body.text("instructions"),
        "max_output_tokens": body.integer("max_output_tokens"),
        "metadata": body.mapping("metadata"),
        "parallel_tool_calls": body.flag("parallel_tool_calls", default=True),
        "previous_response_id": body.text("previous_response_id"),
        "reasoning": body.mapping("reasoning"),
        "temperature": body.number("temperature"),
        "text": body.mapping("text"),
        "tool_choice": body.raw("tool_choice") or "auto",
        "tools": body.array("tools") or [],
        "top_p": body.number("top_p"),
        "user": body.text("user"),
    }


def response_json(call: Call, generation: Generation, status: str | None) -> dict[str, object]:
    """The response object; status None means: as the generation ended."""
    is_cut = False
    if status is None:
        is_cut = generation.finish_reason(0) != "stop"
        status = "incomplete" if is_cut else "completed"
    return {
        "id": call.id,
        "object": "response",
        "created_at": generation.created_s,
        "status": status,
        "background": call.background,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "model": generation.model,
        "output": [] if status == "in_progress" else [_item(generation, status)],
        "service_tier": "auto",
        "store": call.store,
        "truncation": "disabled",
        "usage": None if status == "in_progress" else _usage(generation),
        **call.settings,
    }


class ResponseStream:
    """The events of one response with one output item, a message or a function call."""

    def __init__(self, call: Call, generation: Generation) -> None:
        self._call = call
        self._generation = generation
        self._number = 0
        self._tool = generation.replies[0].tool
        self._item_id = _item_id(generation)
        self._place: dict[str, object] = {"item_id": self._item_id, "output_index": 0}
        self._part: dict[str, object] = {**self._place, "content_index": 0}

    def opening(self) -> bytes:
        response = response_json(self._call, self._generation, "in_progress")
        return self._event("created", {"response": response}) + self._event("in_progress", {"response": response})

    def first(self) -> bytes:
        item = _item(self._generation, "in_progress")
        added = self._event("output_item.added", {"output_index": 0, "item": item})
        if self._tool is not None:
            return added
        return added + self._event("content_part.added", {**self._part, "part": _text_part("")})

    def token(self, choice: int, position: int) -> bytes:
        text = self._generation.replies[choice].token(position)
        if self._tool is not None:
            return self._event("function_call_arguments.delta", {**self._place, "delta": text})
        return self._event("output_text.delta", {**self._part, "delta": text, "logprobs": []})

    def end(self, choice: int) -> bytes:
        text = self._generation.text(choice)
        if self._tool is not None:
            return self._event("function_call_arguments.done", {**self._place, "name": self._tool, "arguments": text})
        done = self._event("output_text.done", {**self._part, "text": text, "logprobs": []})
        return done + self._event("content_part.done", {**self._part, "part": _text_part(text)})

    def closing(self) -> bytes:
        response = response_json(self._call, self._generation, None)
        item = _item(self._generation, "completed")
        done = self._event("output_item.done", {"output_index": 0, "item": item})
        return done + self._event("completed", {"response": response})

    def failure(self, error: ApiError) -> bytes:
        return event({"type": "error", "code": error.kind, "message": error.message, "param": None}, "error")

    def _event(self, name: str, fields: dict[str, object]) -> bytes:
        kind = f"response.{name}"
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)


def _item_id(generation: Generation) -> str:
    return f"{'msg' if generation.replies[0].tool is None else 'fc'}_{generation.request_id}"


def _item(generation: Generation, status: str) -> dict[str, object]:
    is_begun = status == "in_progress"
    text = "" if is_begun else generation.text(0)
    head: dict[str, object] = {"id": _item_id(generation), "status": status}
    tool = generation.replies[0].tool
    if tool is None:
        return {**head, "type": "message", "role": "assistant", "content": [] if is_begun else [_text_part(text)]}
    return {
        **head,
        "type": "function_call",
        "call_id": f"call_{generation.request_id}",
        "name": tool,
        "arguments": text,
    }


def _text_part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(generation: Generation) -> dict[str, object]:
    prompt_tokens, output_tokens = generation.ask.prompt_tokens, generation.completion_tokens
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": generation.cached_tokens},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + output_tokens,
    }
