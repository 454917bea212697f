"""Trace readers on small samples of each format, and the requests drawn from them."""

import gzip
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.sim.traces import TraceError, TraceRow, read_trace
from gateway.sim.workload import WorkloadSpec, draw, told

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n"
)
OURS = "arrival_s,input_tokens,output_tokens\n0.0,4808,10\n0.052,3180,8\n"
MOONCAKE = (
    '{"timestamp": 3000, "input_length": 1100, "output_length": 50, "hash_ids": [0, 7, 9]}\n'
    '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 3]}\n'
)
BAILIAN = (
    '{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 40, "output_length": 13, "type": "text",'
    ' "turn": 1, "hash_ids": [11, 12, 13]}\n'
    '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.6, "input_length": 64, "output_length": 2, "type": "text",'
    ' "turn": 2, "hash_ids": [11, 12, 14, 15]}\n'
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n50,GPT-4,300,0,300,API log\n"
)
BURSTGPT_3 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,s1,1.2,ChatGPT,472,18,490,Conversation log\n"
)
LENGTHS = "num_prefill_tokens,num_decode_tokens\n18,243\n11,306\n"


@pytest.mark.parametrize(
    ("form", "text", "rows"),
    [
        ("azure", AZURE, [TraceRow(0.0, 374, 44), TraceRow(4.314579, 396, 109)]),
        ("azure", AZURE_2024, [TraceRow(0.0, 2162, 5), TraceRow(0.99007, 2399, 6)]),
        ("azure", OURS, [TraceRow(0.0, 4808, 10), TraceRow(0.052, 3180, 8)]),
        ("mooncake", MOONCAKE, [TraceRow(0.0, 600, 5, (0,), 512), TraceRow(3.0, 1100, 50, (0, 7), 512)]),
        ("bailian", BAILIAN, [TraceRow(0.0, 40, 13, (11, 12), 16, "159"), TraceRow(1.5, 64, 2, (11, 12, 14, 15), 16, "159")]),
        ("burstgpt", BURSTGPT, [TraceRow(0.0, 472, 18), TraceRow(40.0, 1087, 230)]),
        ("burstgpt", BURSTGPT_3, [TraceRow(0.0, 472, 18, session="s1")]),
        ("lengths", LENGTHS, [TraceRow(0.0, 18, 243), TraceRow(0.0, 11, 306)]),
    ],
)
def test_each_format(form: str, text: str, rows: list[TraceRow], tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    found = read_trace(path, form)
    assert [row.at_s for row in found] == pytest.approx([row.at_s for row in rows], abs=1e-5)
    for row, want in zip(found, rows, strict=True):
        assert (row.prompt_tokens, row.output_tokens) == (want.prompt_tokens, want.output_tokens)
        assert (row.blocks, row.block_tokens, row.session) == (want.blocks, want.block_tokens, want.session)


def test_packed_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(OURS.encode()))
    (tmp_path / "b.csv").write_text(OURS)
    subprocess.run(["zstd", "-q", str(tmp_path / "b.csv")], check=True)
    assert read_trace(tmp_path / "a.csv.gz", "azure") == read_trace(tmp_path / "b.csv.zst", "azure")


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [
        ("azure", "a,b\n1,2\n", "row 1 is not a azure row"),
        ("mooncake", '{"timestamp": 0}\n', "row 1"),
        ("mooncake", "{", "row 1"),
        ("lengths", "input_tokens,output_tokens\n1,2\nx,3\n", "row 2"),
        ("lengths", "input_tokens,output_tokens\n", "no request"),
        ("parquet", "", "known: azure, mooncake, bailian, burstgpt, lengths"),
    ],
)
def test_a_bad_file_is_named(form: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=words) as caught:
        read_trace(path, form)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "none", "azure")
    (tmp_path / "x.zst").write_text("not packed")
    with pytest.raises(TraceError, match="zstd says"):
        read_trace(tmp_path / "x.zst", "azure")


ROWS = [TraceRow(float(i), 100 + i, 10 + i, (1, i), 64) for i in range(50)]


def test_a_seed_draws_the_same_requests_at_every_rate() -> None:
    spec = WorkloadSpec(rate_per_s=2.0, requests=40, lengths="x")
    slow, fast = draw(spec, ROWS, 16, 4096, 3), draw(WorkloadSpec(rate_per_s=4.0, requests=40, lengths="x"), ROWS, 16, 4096, 3)
    assert [r.arrival_s for r in slow] == pytest.approx([2 * r.arrival_s for r in fast])
    assert [(r.prompt_tokens, r.output_tokens, r.lengths) for r in slow] == [
        (r.prompt_tokens, r.output_tokens, r.lengths) for r in fast
    ]
    assert draw(spec, ROWS, 16, 4096, 3) == slow != draw(spec, ROWS, 16, 4096, 4)
    assert len({r.prompt_tokens for r in slow}) == 40


def test_bursts_have_the_same_mean_and_more_spread() -> None:
    def gaps(shape: float) -> list[float]:
        spec = WorkloadSpec("gamma", 10.0, shape, 4000, lengths="x")
        instants = [r.arrival_s for r in draw(spec, ROWS, 16, 4096, 0)]
        return [b - a for a, b in pairwise(instants)]

    for shape, variance in ((0.25, 4.0), (2.0, 0.5)):
        found = gaps(shape)
        mean = sum(found) / len(found)
        assert mean == pytest.approx(0.1, rel=0.1)
        assert sum((gap / mean - 1) ** 2 for gap in found) / len(found) == pytest.approx(variance, rel=0.2)


def test_a_trace_window_is_scaled_to_the_rate_and_wraps_around() -> None:
    spec = WorkloadSpec("trace", 5.0, 1.0, 30, trace="x", format="mooncake", starts=(0, 40), length_error=0.0)
    for seed, first in ((0, 100), (1, 140), (2, 100)):
        found = draw(spec, ROWS, 64, 4096, seed)
        assert found[0].prompt_tokens == first
        assert found[-1].arrival_s == pytest.approx(6.0)
        assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(found))
    assert {r.prompt_tokens for r in draw(spec, ROWS, 64, 4096, 1)} == {*range(140, 150), *range(100, 120)}


def test_prefixes_at_the_engines_block_size() -> None:
    spec = WorkloadSpec("trace", 5.0, 1.0, 10, trace="x", format="mooncake", length_error=0.0)
    fine, same = draw(spec, ROWS, 16, 4096, 0), draw(spec, ROWS, 64, 4096, 0)
    assert [len(r.prefix) for r in fine] == [min(8, r.prompt_tokens // 16) for r in fine]
    assert [len(r.prefix) for r in same] == [min(2, r.prompt_tokens // 64) for r in same]
    assert len({r.prefix[0] for r in same}) == 1
    assert len({r.prefix[1] for r in same if len(r.prefix) > 1}) == len([r for r in same if len(r.prefix) > 1])
    with pytest.raises(ValueError, match="block size 48"):
        draw(spec, ROWS, 48, 4096, 0)


def test_unseen_and_hot_prefixes() -> None:
    spec = WorkloadSpec("trace", 5.0, 1.0, 400, trace="x", format="mooncake", unrecognised=0.25, hot_share=0.5, hot_tokens=64)
    found = draw(spec, ROWS, 64, 4096, 0)
    assert sum(r.seen_prefix == () for r in found) == pytest.approx(100, abs=30)
    assert all(r.seen_prefix in {(), r.prefix} for r in found)
    firsts = [r.prefix[0] for r in found]
    assert max(firsts.count(first) for first in set(firsts)) == pytest.approx(200, abs=40)


def test_told_lengths_err_as_much_as_asked() -> None:
    from random import Random

    rng = Random(0)
    many = [told(1000, 0.25, rng) for _ in range(4000)]
    assert sum(e.q50 for e in many) / 4000 == pytest.approx(1000, rel=0.02)
    assert sum((e.q50 / 1000 - 1) ** 2 for e in many) / 4000 == pytest.approx(0.0625, rel=0.1)
    assert sum(e.q10 <= 1000 <= e.q90 for e in many) / 4000 == pytest.approx(0.8, abs=0.05)
    assert told(7, 0.0, rng).q10 == told(7, 0.0, rng).q90 == 7


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"arrivals": "uniform"}, "arrivals"),
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"unrecognised": 1.5}, "unrecognised"),
        ({"lengths": "", "trace": ""}, "lengths"),
        ({"trace": "y"}, "lengths"),
        ({"lengths": "", "trace": "y"}, "format"),
        ({"arrivals": "trace"}, "trace"),
        ({"starts": ()}, "starts"),
    ],
)
def test_a_wrong_workload_names_its_key(fields: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}"):
        WorkloadSpec(**{"lengths": "x", **fields})  # type: ignore[arg-type]
