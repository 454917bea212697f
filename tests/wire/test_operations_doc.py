"""docs/operations.md tells of the access line's fields, the events and the metrics that there are."""

import re
from pathlib import Path

from gateway.access_line import access_fields
from gateway.accounts import Account
from tests.wire.kit import Rig, chat, run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operations.md").read_text()


def test_the_access_lines_fields_are_all_told() -> None:
    (table,) = re.findall(r"\| field \|.*?(?=\n\n)", TEXT, re.DOTALL)
    told = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    account = Account(1.0)
    account.swap_s = 1.0
    assert told == list(access_fields(account, ""))


def test_the_metrics_that_are_named_exist() -> None:
    async def case(rig: Rig) -> None:
        await rig.ask(chat())
        families = set(re.findall(r"^# TYPE (\S+) ", await rig.metrics(), re.MULTILINE))
        named = set(re.findall(r"`(leeway_\w+)`", TEXT))
        assert len(named) > 20
        assert named <= families | {f"{name}_total" for name in families}

    run(case)


def test_the_events_that_are_named_exist() -> None:
    source = "".join(path.read_text() for path in (ROOT / "gateway").glob("*.py"))
    (told,) = re.findall(r"Other events: (.*?)\n\n", TEXT, re.DOTALL)
    for event in re.findall(r"`([^`]+)`", told):
        prefix, _, last = event.rpartition(" ")
        made = f'"{event}"' in source or (prefix == "backend" and f'_log("{last}"' in source) or f'_log("{event}"' in source
        assert made or (event == "tagger up" and 'f"tagger {what}"' in source), event
