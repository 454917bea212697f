"""`gateway backends`: the admin API's list as a table in the terminal. Shell."""

import json
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_S = 10.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the key is for the gateway, not for a proxy on the way


class NotReachableError(Exception):
    """The control listener did not answer as expected; the text says what to do."""


def fetch(control: str, admin_key: str, path: str = "/admin/backends") -> dict[str, Any]:
    """What the admin API answers there. Raises NotReachableError."""
    base = control.rstrip("/") if "://" in control else f"http://{control}"
    request = urllib.request.Request(f"{base}{path}", headers={"authorization": f"Bearer {admin_key}"})
    try:
        with _DIRECT.open(request, timeout=TIMEOUT_S) as answer:
            document: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        hint = " Set LEEWAY_ADMIN_KEY or --admin-key." if error.code == 401 else _said(error)
        raise NotReachableError(f"{control} answered {error.code}.{hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        said = getattr(reason, "strerror", None) or reason
        raise NotReachableError(f"{control} cannot be asked: {said}. --control names the gateway's control listener.") from None
    return document


def _said(error: urllib.error.HTTPError) -> str:
    """What the error's body says, if it has our shape."""
    try:
        return f" {json.load(error)['error']['message']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def show(control: str, admin_key: str) -> None:
    """Print the table. Raises NotReachableError."""
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "state", "in flight", "engine", "models", "url", "why")
    for backend in fetch(control, admin_key)["backends"]:
        found = backend.get("found") or {}
        models = ", ".join(found.get("models") or backend["models"])
        row = (
            backend["name"],
            backend["state"],
            backend["in_flight"],
            found.get("engine") or backend.get("engine"),
            models,
            backend["url"],
            backend.get("reason"),
        )
        table.add_row(*map(str, row))
    Console().print(table)
