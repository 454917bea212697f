"""What of a request's body tells how long its answer may be: a small view of a parsed body, whatever its size. Pure.

Understands the chat, completion, response and message faces by the members they have. Of the last user's text only
head and tail are kept, of the earlier turns only lengths and roles, and of a long conversation only the last
`TURNS_MAX` turns are looked at: agents send much constant text and put the user's words last. Never raises: what has
an unexpected type counts as absent, since the engine judges the request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HEAD_CHARS = 4096
TAIL_CHARS = 4096
REPLY_CHARS = 512
OPENING_CHARS = 64
FIRST_CHARS = 256
CALLS_CHARS = 256
TURNS_MAX = 64
PARTS_MAX = 32
ROLES = ("user", "assistant", "tool", "system")


@dataclass(frozen=True, slots=True)
class PromptView:
    """One request. Lengths are in characters. `tail` is empty where `head` holds the whole of the last user's text."""

    head: str = ""
    tail: str = ""
    text_chars: int = 0  # of the last user's text
    all_chars: int = 0  # of all text that was looked at, the system's included
    system_chars: int = 0
    opening: str = ""  # how the prompt begins: tells templates and applications apart
    replies: tuple[int, ...] = ()  # earlier assistant turns, oldest first
    reply_tail: str = ""  # how the last of them ended
    first: str = ""  # how the user's first text began, where there is a later one
    reply_called: bool = False  # ... or it called a tool
    calls: str = ""  # which tools, with what
    turns: int = 0  # of the user
    last_chars: int = 0  # of the last turn, whoever said it
    last_role: str = "user"
    tools: int = 0
    images: int = 0
    json_asked: bool = False
    max_tokens: int = -1  # -1: no limit given


class _Reading:
    """What is gathered while the turns are read, the latest first."""

    __slots__ = ("all_chars", "called", "calls", "first", "images", "last_chars", "last_role", "opening", "replies") + (
        "reply_tail",
        "system_chars",
        "text",
        "turns",
    )

    def __init__(self) -> None:
        self.text: str | None = None
        self.all_chars = 0
        self.system_chars = 0
        self.opening = ""
        self.first = ""
        self.replies: list[int] = []
        self.reply_tail = ""
        self.called = False
        self.calls = ""
        self.turns = 0
        self.last_chars = 0
        self.last_role = ""
        self.images = 0

    def turn(self, role: str, text: str, images: int, called_chars: int = 0) -> None:
        self.all_chars += len(text) + called_chars
        self.images += images
        if not self.last_role:
            self.last_role, self.last_chars = role, len(text)
        if role == "user":
            self.turns += 1
            if self.text is not None:
                self.first = text[:FIRST_CHARS]
            elif text or images:
                self.text = text
        elif role == "assistant":
            if not self.replies:
                self.reply_tail, self.called = text[-REPLY_CHARS:], called_chars > 0
            self.replies.append(len(text) + called_chars)
        elif role == "system":
            self.system(text)

    def system(self, text: str) -> None:
        self.system_chars += len(text)
        self.opening = text[:OPENING_CHARS]


def view_of(parsed: Mapping[str, object], max_tokens: int = -1) -> PromptView:
    """The view of a parsed body (or of those of its members that are at hand). `max_tokens` below 1: no limit."""
    get = parsed.get
    reading = _Reading()
    turns = get("messages")
    if turns is None:
        turns = get("input") if "input" in parsed else get("prompt")
    _read(reading, turns)
    for member in ("system", "instructions"):
        text, _ = _text(get(member))
        if text:
            reading.all_chars += len(text)
            reading.system(text)
    text = reading.text or ""
    tools = get("tools")
    return PromptView(
        head=text[:HEAD_CHARS],
        tail=text[max(HEAD_CHARS, len(text) - TAIL_CHARS) :],
        text_chars=len(text),
        all_chars=reading.all_chars,
        system_chars=reading.system_chars,
        opening=reading.opening or text[:OPENING_CHARS],
        replies=tuple(reversed(reading.replies)),
        reply_tail=reading.reply_tail,
        first=reading.first,
        reply_called=reading.called,
        calls=reading.calls,
        turns=reading.turns,
        last_chars=reading.last_chars,
        last_role=reading.last_role or "user",
        tools=len(tools) if isinstance(tools, list) else 0,
        images=reading.images,
        json_asked=_json_asked(get("response_format")) or _json_asked(get("text")),
        max_tokens=max_tokens if max_tokens > 0 else -1,
    )


def _read(reading: _Reading, turns: object) -> None:
    if isinstance(turns, str):
        reading.turn("user", turns, 0)
    elif isinstance(turns, list):
        if turns and isinstance(turns[0], int):  # token ids: four characters each, and no words
            reading.turn("user", "", 0)
            reading.all_chars += 4 * len(turns)
            return
        first = turns[:1] if len(turns) > TURNS_MAX else []
        for turn in reversed(first + turns[-TURNS_MAX:]):
            if isinstance(turn, str):
                reading.turn("user", turn, 0)
            elif isinstance(turn, dict):
                latest = not reading.replies
                reading.turn(*_turn(turn))
                if latest and reading.called:
                    reading.calls = _calls_text(turn)


def _turn(turn: Mapping[str, object]) -> tuple[str, str, int, int]:
    """Role, text, number of images, characters of the tool calls in it."""
    role = turn.get("role")
    if not isinstance(role, str):
        role = "tool" if turn.get("type") == "function_call_output" else "assistant"
    elif role == "developer":
        role = "system"
    elif role == "function":
        role = "tool"
    content = turn.get("content")
    if role == "user" and isinstance(content, list) and content and _all_tool_results(content):
        role = "tool"
    text, images = _text(content if content is not None else turn.get("output"))
    return role, text, images, _called_chars(turn, content)


def _calls(turn: Mapping[str, object], content: object) -> list[object]:
    """The tool calls of an assistant's turn, in any face's form."""
    calls = turn.get("tool_calls")
    if turn.get("type") == "function_call":
        calls = [turn]
    elif isinstance(content, list) and not calls:
        calls = [part for part in content[-PARTS_MAX:] if isinstance(part, dict) and part.get("type") == "tool_use"]
    return calls[:PARTS_MAX] if isinstance(calls, list) else []


def _called_chars(turn: Mapping[str, object], content: object) -> int:
    """About how long they are."""
    chars = 0
    for call in _calls(turn, content):
        function = call.get("function", call) if isinstance(call, dict) else None
        arguments = function.get("arguments", function.get("input")) if isinstance(function, dict) else None
        chars += 32 + (len(arguments) if isinstance(arguments, str | dict) else 0) * (1 if isinstance(arguments, str) else 24)
    return chars


def _calls_text(turn: Mapping[str, object]) -> str:
    """Names and arguments of the last of them."""
    calls = _calls(turn, turn.get("content"))
    function = calls[-1].get("function", calls[-1]) if calls and isinstance(calls[-1], dict) else None
    if not isinstance(function, dict):
        return ""
    name, arguments = function.get("name"), function.get("arguments", function.get("input"))
    said = [name if isinstance(name, str) else ""]
    if isinstance(arguments, str):
        said.append(arguments[:CALLS_CHARS])
    elif isinstance(arguments, dict):
        pairs = list(arguments.items())[:PARTS_MAX]
        said += [f"{key} {value[:CALLS_CHARS]}" for key, value in pairs if isinstance(value, str)]
    return " ".join(said)[:CALLS_CHARS]


def _all_tool_results(parts: Iterable[object]) -> bool:
    return all(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)


def _text(content: object) -> tuple[str, int]:
    """The text of a turn's content, and how many images it holds."""
    if isinstance(content, str):
        return content, 0
    if not isinstance(content, list):
        return "", 0
    texts: list[str] = []
    images = 0
    for part in content[-PARTS_MAX:]:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            text = part.get("text")
            if isinstance(text, str):
                texts.append(text)
            elif part.get("type") == "tool_result":
                texts.append(_text(part.get("content"))[0] if not isinstance(part.get("content"), dict) else "")
            else:
                kind = part.get("type")
                images += isinstance(kind, str) and "image" in kind
    return "\n".join(texts), images


def _json_asked(form: object) -> bool:
    if not isinstance(form, dict):
        return False
    kind = form.get("type")
    if isinstance(kind, str):
        return kind.startswith("json")
    return _json_asked(form.get("format"))
