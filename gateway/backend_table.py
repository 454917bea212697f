"""`gateway backends`: the admin API's list as a table in the terminal. Shell."""

import json
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_S = 10.0


class NotReachableError(Exception):
    """The control listener did not answer as expected; the text says what to do."""


def fetch(control: str, admin_key: str) -> list[dict[str, Any]]:
    """The backends as the admin API tells them. Raises NotReachableError."""
    request = urllib.request.Request(f"{control.rstrip('/')}/admin/backends", headers={"authorization": f"Bearer {admin_key}"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            document = json.load(answer)
    except urllib.error.HTTPError as error:
        hint = " Set LEEWAY_ADMIN_KEY or --admin-key." if error.code == 401 else ""
        raise NotReachableError(f"{control} answered {error.code}.{hint}") from None
    except (OSError, ValueError) as error:
        raise NotReachableError(f"{control} cannot be asked: {error}") from None
    return list(document["backends"])


def show(control: str, admin_key: str) -> None:
    """Print the table. Raises NotReachableError."""
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "state", "in flight", "engine", "models", "url", "why")
    for backend in fetch(control, admin_key):
        found = backend.get("found") or {}
        models = ", ".join(found.get("models") or backend["models"])
        row = (
            backend["name"],
            backend["state"],
            backend["in_flight"],
            backend.get("engine"),
            models,
            backend["url"],
            backend.get("reason"),
        )
        table.add_row(*map(str, row))
    Console().print(table)
