"""The papers' commands: what each argument does, what is left of a report, what its line of JSON says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.sim.paper import Bench, Paper, Picture, Section, run
from gateway.sim.tables import TableError

ROOT = Path(__file__).parents[2]
SCRIPTS = ("astrolabe/astrolabe_run.py", "cascade/cascade_run.py", "multimodel/run.py")
COMMANDS = [ROOT / "examples" / "papers" / name for name in SCRIPTS]


def drawn(bench: Bench) -> Section:
    figures = {"seeds": float(bench.seeds), "unknown": float("nan")}
    return Section("Drawn", [f"{bench.requests} requests"], figures, {"plot": Picture("A plot", "<svg/>")}, {"rows.csv": "1\n"})


def broken(bench: Bench) -> Section:
    raise TableError(str(bench.data), "", "no traces")


PARTS = {"drawn": drawn, "plain": lambda _: Section("Plain", ["Words."]), "absent": lambda _: None, "broken": broken}


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Path:
    """The report after the command ran."""
    report = tmp_path / "docs" / "some.md"
    places = ["--kept", str(tmp_path / "kept"), "--out", str(report)]
    monkeypatch.setattr(sys, "argv", ["command", *arguments, *places])
    run(Paper("some", "# Head\n\nWords.", PARTS, Bench, "sources"), tmp_path, "What it does.\n\nMore.")
    return report


def test_a_report_holds_what_was_run_and_figures_go_into_one_line(tmp_path, monkeypatch, capsys) -> None:
    report = told(tmp_path, monkeypatch, "--only", "drawn,absent,plain", "--seeds", "2", "--requests", "30")
    words = "# Head\n\nWords.\n\n## Drawn\n\n30 requests\n\n![A plot](some/plot.svg)\n\n## Plain\n\nWords.\n"
    assert report.read_text() == words
    assert (report.parent / "some" / "plot.svg").read_text() == "<svg/>\n"
    assert (report.parent / "some" / "rows.csv").read_text() == "1\n"
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"seeds": 2.0, "unknown": None}


def test_an_update_leaves_all_else_as_it_stands(tmp_path, monkeypatch) -> None:
    report = told(tmp_path, monkeypatch, "--only", "drawn,plain")
    report.write_text("# Head\n\nBy hand.\n\n## Plain\n\nOld.\n\n## Other\n\nBy hand, too.\n")
    told(tmp_path, monkeypatch, "--only", "plain", "--update")
    assert report.read_text() == "# Head\n\nBy hand.\n\n## Plain\n\nWords.\n\n## Other\n\nBy hand, too.\n"


def test_a_part_that_does_not_exist_is_named(tmp_path, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit):
        told(tmp_path, monkeypatch, "--only", "plain,wrong")
    assert "no part wrong; there are drawn, plain, absent, broken" in capsys.readouterr().err


def test_a_wrong_table_ends_the_command_and_leaves_the_report(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LEEWAY_DATA", str(tmp_path))
    report = told(tmp_path, monkeypatch, "--only", "plain")
    with pytest.raises(SystemExit, match=f"{tmp_path}: no traces"):
        told(tmp_path, monkeypatch, "--only", "drawn,broken")
    assert report.read_text() == "# Head\n\nWords.\n\n## Plain\n\nWords.\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.parent.name)
def test_every_paper_takes_the_same_arguments(command: Path) -> None:
    done = subprocess.run([sys.executable, str(command), "--help"], capture_output=True, text=True, check=True, cwd=ROOT)
    for argument in ("--only", "--seeds", "--requests", "--jobs", "--kept", "--out", "--update"):
        assert argument in done.stdout


def test_plots_stand_beside_the_report_of_many_models(tmp_path: Path) -> None:
    arguments = ["--only", "offload,rules", "--kept", str(tmp_path / "kept"), "--out", str(tmp_path / "report.md")]
    command = [sys.executable, str(COMMANDS[2]), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(json.loads(done.stdout.splitlines()[-1])) == {"harmonic_err", "linear_err"}
    assert "![14B Q4, RTX 5060 Ti: tokens per second](report/offload.svg)" in (tmp_path / "report.md").read_text()
