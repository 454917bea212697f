"""What a client asks for, decoded once from any of the four faces into one record.

Pure: takes a body (and headers where they carry something), returns frozen records or raises ApiError 400.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from backends.mock_body import Body
from backends.mock_http import ApiError, bad_field, bad_request, dumps
from backends.mock_text import Prompt, count_tokens, lay_out, lay_out_ids

CHOICES_MAX = 128


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the answer: free text, JSON after a schema, or the arguments of a tool call."""

    kind: str = "text"  # "text", "json" or "tool"
    schema: object = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers."""

    name: str
    schema: object


@dataclass(frozen=True, slots=True)
class Hints:
    """What travels beside the prompt: identity and what a gateway attaches for the scheduler."""

    request_id: str | None = None
    priority: int | None = None
    vllm_xargs: Mapping[str, object] = field(default_factory=dict)
    kv_transfer_params: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Each prompt gets `n` choices; `max_tokens` None means up to the context's end."""

    model: str | None
    prompts: tuple[Prompt, ...]
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    form: Form = field(default_factory=Form)
    hints: Hints = field(default_factory=Hints)
    pooling: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, counted once each."""
        return sum(prompt.tokens for prompt in self.prompts)


def content_texts(content: object) -> Iterator[str]:
    """Every piece of text in a message's content: a string, or parts with text, nested results, tool arguments."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from content_texts(part)
    elif isinstance(content, dict):
        for name in ("text", "content", "output"):
            yield from content_texts(content.get(name))
        for name in ("input", "arguments"):
            if content.get(name) is not None:
                value = content[name]
                yield value if isinstance(value, str) else dumps(value).decode()


def prompt_of(texts: Sequence[str], messages: int, tools: object) -> Prompt:
    """The prompt of a conversation. Offered tools are part of it, as chat templates write them out: before the rest."""
    offered = [dumps(tools).decode()] if tools else []
    parts = [*texts, *offered]
    return Prompt("\x00".join(parts), count_tokens(parts, messages), lay_out([*offered, *texts], messages))


def decode_hints(body: Body, headers: Mapping[str, str]) -> Hints:
    """Identity and scheduling fields; headers win over the body."""
    priority = body.integer("priority")
    if "X-Vllm-Priority" in headers:
        try:
            priority = int(headers["X-Vllm-Priority"])
        except ValueError:
            raise bad_request("the header X-Vllm-Priority must be an integer") from None
    xargs = body.mapping("vllm_xargs") or {}
    for name, value in xargs.items():
        if not all(isinstance(item, str | int | float) for item in (value if isinstance(value, list) else [value])):
            raise bad_field(f"vllm_xargs.{name} must be a string, a number or a list of these", "vllm_xargs")
    request_id = headers.get("X-Request-Id") or body.text("request_id")
    return Hints(request_id, priority, xargs, body.mapping("kv_transfer_params"))


def decode_chat(values: Mapping[str, object], headers: Mapping[str, str]) -> Ask:
    """The body of /v1/chat/completions."""
    body = Body(values)
    messages = body.children("messages")
    if not messages:
        raise body.missing("messages")
    texts: list[str] = []
    for message in messages:
        message.required_text("role")
        texts += content_texts(_content(message))
        texts += content_texts(message.raw("tool_calls"))
    tools = tuple(
        Tool(function.required_text("name"), function.raw("parameters"))
        for offer in body.children("tools")
        if (function := offer.child("function")) is not None
    )
    limit = body.integer("max_completion_tokens", low=1)
    prompt = prompt_of(texts, len(messages), body.raw("tools"))
    return _sampled(
        body,
        headers,
        (prompt,),
        limit if limit is not None else body.integer("max_tokens", low=1),
        _chat_form(body, tools),
    )


def decode_completion(values: Mapping[str, object], headers: Mapping[str, str]) -> Ask:
    """The body of /v1/completions, whose length is 16 tokens unless it says otherwise."""
    body = Body(values)
    limit = body.integer("max_tokens", low=1)
    return _sampled(body, headers, decode_inputs(body, "prompt"), 16 if limit is None else limit, Form())


def decode_inputs(body: Body, name: str) -> tuple[Prompt, ...]:
    """A field that holds a string, token ids, or a list of either."""
    value = body.raw(name)
    if isinstance(value, list) and value and not all(isinstance(item, int) for item in value):
        return tuple(_input(body, name, item) for item in value)
    if value is None:
        raise body.missing(name)
    return (_input(body, name, value),)


def pick_tool(tools: Sequence[Tool], name: str | None) -> Form:
    """A forced tool call: of the named function, or of the first one offered."""
    for tool in tools:
        if name is None or tool.name == name:
            return Form("tool", tool.schema, tool.name)
    raise bad_request("tool_choice names no function of tools" if tools else "tool_choice needs tools", "tool_choice")


def schema_form(kind: str | None, schema: object) -> Form:
    """The form that a response format of that kind asks for."""
    if kind in (None, "text"):
        return Form()
    if kind == "json_object":
        return Form("json")
    if kind == "json_schema":
        return Form("json", schema)
    raise bad_field(f"response format {kind!r} is unknown", "response_format")


def _sampled(body: Body, headers: Mapping[str, str], prompts: tuple[Prompt, ...], max_tokens: int | None, form: Form) -> Ask:
    n = body.integer("n", low=1) or 1
    if n * len(prompts) > CHOICES_MAX:
        raise bad_request(f"at most {CHOICES_MAX} choices a request", "n")
    stream = body.flag("stream")
    options = body.child("stream_options") or Body({})
    if "stream_options" in body and not stream:
        raise bad_request("stream_options needs stream", "stream_options")
    return Ask(
        model=body.text("model"),
        prompts=prompts,
        n=n,
        max_tokens=max_tokens,
        min_tokens=body.integer("min_tokens", low=0) or 0,
        ignore_eos=body.flag("ignore_eos"),
        seed=body.integer("seed"),
        stream=stream,
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("include_usage") and options.flag("continuous_usage_stats"),
        form=form,
        hints=decode_hints(body, headers),
    )


def _chat_form(body: Body, tools: Sequence[Tool]) -> Form:
    choice = body.raw("tool_choice")
    if choice == "required":
        return pick_tool(tools, None)
    if isinstance(choice, dict):
        function = Body(choice, "tool_choice.").child("function")
        return pick_tool(tools, None if function is None else function.required_text("name"))
    if choice not in (None, "auto", "none"):
        raise bad_field("tool_choice must be none, auto, required or an object", "tool_choice")
    wanted = body.child("response_format")
    if wanted is None:
        return Form()
    holder = wanted.child("json_schema")
    return schema_form(wanted.text("type"), None if holder is None else holder.raw("schema"))


def _content(message: Body) -> object:
    content = message.raw("content")
    if content is None or isinstance(content, str | list):
        return content
    raise bad_field(f"{message.field('content')} must be a string or a list", message.field("content"))


def _input(body: Body, name: str, value: object) -> Prompt:
    if isinstance(value, str):
        return Prompt(value, count_tokens([value]), lay_out([value]))
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return Prompt(" ".join(map(str, value)), len(value), lay_out_ids(value))
    raise _bad_input(body, name)


def _bad_input(body: Body, name: str) -> ApiError:
    return bad_field(f"{body.field(name)} must be text, token ids, or a list of either", body.field(name))
