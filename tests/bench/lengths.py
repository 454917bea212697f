"""`make eval-length`: how well answers' lengths are foretold, beside every baseline, on public answers (docs/lengths.md).

Needs the data folder (LEEWAY_DATA). Prints tables, then one line of JSON. Splits go by group: what is alike stays together.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np

from gateway.tagger.sentences import Known
from predictor.features import FEATURES
from tests.bench import lengths_curve as curves
from tests.bench import lengths_live as live
from tests.bench import lengths_models as models
from tests.bench import lengths_noise as noise
from tests.bench import lengths_pooled as many
from tests.bench.lengths_data import HELD_OUT, Table, folds, load
from tests.bench.lengths_embed import NoWeightsError, embedded, fetched
from tests.bench.lengths_scores import LEVELS, Scores, gain, interval, log_mae, pinball, scores, table, tau

LLAMA = ("Meta-Llama-3.1-8B-Instruct", "Meta-Llama-3_1-8B-Instruct", "Meta-Llama-3.1-8B-Instruct-Turbo")
QWEN = ("Qwen2-72B-Instruct",)
AIMS = {
    "llama8b_tau": 0.58,
    "llama8b_logmae": 0.50,
    "qwen72b_tau": 0.58,
    "qwen72b_logmae": 0.295,
    "sharegpt_own_tau": 0.43,
    "sharegpt_own_logmae": 0.58,
    "unseen30_logmae": 0.66,
    "unseen30_tau_within": 0.17,
    "shipped_vs_constant": 1.0,
    "cold_logmae": 0.99,
    "pinball_vs_running": 1.0,
    "llama8b_sentences_tau": 0.58,
    "llama8b_sentences_logmae": 0.50,
    "qwen72b_sentences_tau": 0.58,
    "qwen72b_sentences_logmae": 0.295,
    "sharegpt_own_sentences_tau": 0.43,
    "sharegpt_own_sentences_logmae": 0.58,
    "llama8b_tau_gain_low": 0.0,
    "qwen72b_tau_gain_low": 0.0,
    "sharegpt_own_tau_gain_low": 0.0,
    "llama8b_sentences_tau_gain_low": 0.0,
    "qwen72b_sentences_tau_gain_low": 0.0,
    "sharegpt_own_sentences_tau_gain_low": 0.0,
}
AIMED = ("llama8b", "qwen72b", "sharegpt_own")  # rows that have MiniLM baselines beside them
FOLDS = 5
UNCONDITIONAL = "quantiles of all answers"
Figures = dict[str, float | None]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("LEEWAY_CACHE", ".bench")) / "lengths")
    parser.add_argument("--no-minilm", action="store_true", help="leave the MiniLM baselines out (embedding takes minutes)")
    parser.add_argument("--quick", action="store_true", help="only the tagger's own rows: cold, after 30, and streams")
    parser.add_argument("--encoder", action="store_true", help="the tagger's own rows with the shipped encoder, too")
    parser.add_argument("--baselines", default="", help="in trained rows only the baselines whose name holds this")
    parser.add_argument("--parts", type=int, default=FOLDS, help=f"how many of the {FOLDS} parts of a trained row are asked")
    parser.add_argument("--only", help="only this: llama8b, qwen72b, sharegpt_own, a source, pooled, curve, noise")
    args = parser.parse_args()
    folder = Path(os.environ.get("LEEWAY_DATA", "data"))
    if not (folder / "lengths" / "responses.parquet").exists():
        sys.exit(f"no data in {folder}/lengths: name the folder by LEEWAY_DATA (docs/lengths.md says what is in it)")
    rows = load(folder)
    figures: Figures = {}
    if not args.quick:
        embeddings = {} if args.no_minilm else _embeddings(rows, args.home)
        figures["minilm"] = float(bool(embeddings))
        for key, (name, chosen) in _settings(rows).items():
            if args.only in (None, key):
                with_embedding = embeddings if key in AIMED else {}
                checkpoint = fetched(args.home) if with_embedding else None
                part = models.part_of(rows.rows(chosen), with_embedding)
                _trained(key, name, part, figures, args.parts, args.baselines, checkpoint)
        if args.only in (None, "pooled"):
            _pooled(rows, None if args.no_minilm else args.home, embeddings, figures)
        if args.only in (None, "curve"):
            _curves(rows)
        if args.only in (None, "noise"):
            _noise(rows, folder)
    if args.only is None:
        _live(rows, figures, encoder=args.encoder)
    _aims(figures)
    print(json.dumps({"eval": "length", **{key: value and round(value, 4) for key, value in figures.items()}}))


def _settings(rows: Table) -> dict[str, tuple[str, np.ndarray]]:
    """What throw-away models are trained for: title and rows."""
    source = rows.of("source")
    own = {name: (f"{name}, trained on its own traffic", source == name) for name in (HELD_OUT[1], "moss", "mtbench101")}
    return {
        "llama8b": ("Llama-3.1-8B, one model, several workloads", np.isin(rows.models, LLAMA)),
        "qwen72b": ("Qwen2-72B, one model, several workloads", np.isin(rows.models, QWEN)),
        "sharegpt_own": ("ShareGPT, trained on its own traffic", source == HELD_OUT[0]),
        **own,
    }


def _embeddings(rows: Table, home: Path) -> dict[str, np.ndarray]:
    """Of the prompts of the rows that need them, by pid; kept by source."""
    wanted = np.isin(rows.models, LLAMA + QWEN) | (rows.of("source") == HELD_OUT[0])
    found: dict[str, np.ndarray] = {}
    for source in sorted(set(rows.rows(wanted).of("source").tolist())):
        prompts = [prompt for prompt in rows.prompts if prompt.source == source]
        print(f"embedding {len(prompts)} prompts of {source} (kept in {home})", file=sys.stderr)
        try:
            vectors = embedded([prompt.text for prompt in prompts], home)
        except NoWeightsError as error:
            print(f"MiniLM baselines are LEFT OUT: {error}")
            return {}
        found.update(zip([prompt.pid for prompt in prompts], vectors, strict=True))
    return found


def _trained(
    key: str, name: str, part: models.Part, figures: Figures, parts: int, named: str = "", checkpoint: Path | None = None
) -> None:
    """Throw-away models, each row foretold by one that saw no row of its group. `named`: in the names of wanted baselines;
    `checkpoint`: of a sentence encoder, for the row of ours that has one."""
    chats = bool(part.numbers[:, FEATURES.index("replies")].any())
    baselines = {**models.BASELINES, **(models.WITH_HISTORY if chats else {})}
    if part.embedded is not None:
        baselines |= {**models.WITH_EMBEDDING, **(models.WITH_BOTH if chats else {})}
    baselines = {label: predictor for label, predictor in baselines.items() if named in label}
    fold = folds(part.groups, FOLDS, 0)
    told = {label: np.zeros(len(part.truth)) for label in baselines}
    own = [*models.OURS, *([models.WITH_SENTENCES] if checkpoint else [])]
    ours = {label: np.zeros((len(part.truth), 3)) for label in (*own, UNCONDITIONAL)}
    known: Known = {}
    for number in range(parts):
        there = fold == number
        seen, asked = part.rows(~there), part.rows(there)
        for label, predictor in baselines.items():
            told[label][there] = predictor(seen, asked)
        for label, text in models.OURS.items():
            ours[label][there] = models.quantiles_of_gateway(seen, asked, text=text)
        if checkpoint:
            ours[models.WITH_SENTENCES][there] = models.quantiles_with_sentences(seen, asked, checkpoint, known)
        ours[UNCONDITIONAL][there] = np.quantile(seen.truth, LEVELS)
    asked_at_all = fold < parts
    part, ours = part.rows(asked_at_all), {label: way[asked_at_all] for label, way in ours.items()}
    told = {label: way[asked_at_all] for label, way in told.items()} | {label: ours[label][:, 1] for label in own}
    found = {label: scores(part.truth, way, part.sources) for label, way in told.items()}
    left_out = "" if part.embedded is not None else " (MiniLM baselines left out)"
    print(table(f"{name}: {len(part.truth)} answers, {parts} of {FOLDS} parts by group{left_out}", found))
    _compare(key, part, told, found, list(baselines), figures)
    _spread(key, part, ours, figures)


def _compare(
    key: str,
    part: models.Part,
    told: dict[str, np.ndarray],
    found: dict[str, Scores],
    baselines: list[str],
    figures: Figures,
) -> None:
    without_text, with_text = models.OURS
    best = max(baselines, key=lambda label: found[label].tau)
    prefixes = {with_text: key, without_text: f"{key}_no_text", models.WITH_SENTENCES: f"{key}_sentences"}
    for label, prefix in [(label, prefix) for label, prefix in prefixes.items() if label in told]:
        figures[f"{prefix}_tau"] = found[label].tau
        figures[f"{prefix}_logmae"] = found[label].log_mae
        low, middle, high = gain(part.truth, told[label], told[best], part.groups)
        figures[f"{prefix}_tau_gain_low"] = low
        print(f"{label} - {best}: tau {middle:+.4f}, 90 % interval {low:+.4f} .. {high:+.4f}")


def _spread(key: str, part: models.Part, ours: dict[str, np.ndarray], figures: Figures) -> None:
    """How far ours would have been off on other draws of these prompts, and how good the quantiles are."""
    for label, way in ours.items():
        covered, loss = (part.truth[:, None] <= way).mean(axis=0), pinball(part.truth, way)
        line = f"{label:32s} q10 {covered[0]:.3f}, q90 {covered[2]:.3f} covered, pinball {loss:.4f}"
        if label != UNCONDITIONAL:
            taus, errors = (interval(measure, part.truth, way[:, 1], part.groups) for measure in (tau, log_mae))
            line += f"; 90 % intervals: tau {taus[0]:.3f} .. {taus[1]:.3f}, log-MAE {errors[0]:.3f} .. {errors[1]:.3f}"
        print(line)
    with_text = list(models.OURS)[1]
    figures[f"{key}_coverage_q90"] = float((part.truth <= ours[with_text][:, 2]).mean())
    figures[f"{key}_pinball"] = pinball(part.truth, ours[with_text])


def _pooled(rows: Table, home: Path | None, embeddings: dict[str, np.ndarray], figures: Figures) -> None:
    """Many models' answers in one table. Without `home`: no embeddings."""
    chosen = many.chosen(rows)
    vectors = dict(embeddings) if home is not None else {}
    for source, prompts in chosen.items():
        if home is not None and embeddings and any(prompt.pid not in vectors for prompt in prompts):
            print(f"embedding {len(prompts)} prompts of {source} (kept in {home})", file=sys.stderr)
            vectors.update(zip([one.pid for one in prompts], embedded([one.text for one in prompts], home), strict=True))
    part = many.answers(rows, chosen)
    found = many.pooled(part, vectors)
    print(
        table(f"many models pooled, unseen prompts of seen sources ({len(part)} answers, one of five parts asked)", found.known)
    )
    print(table(f"... sources held out, after {many.CALIBRATION} answers of each", found.held_out))
    ours, (low, middle, high) = found.known[many.OURS], found.gain
    print(f"{many.OURS} - {found.best}: tau {middle:+.4f}, 90 % interval {low:+.4f} .. {high:+.4f}")
    figures |= {"pooled_tau": ours.tau, "pooled_tau_within": ours.tau_within, "pooled_logmae": ours.log_mae}
    figures["pooled_tau_gain_low"] = low


def _curves(rows: Table) -> None:
    """How the aimed rows depend on how many answers there are to learn from."""
    for key, (name, chosen) in _settings(rows).items():
        if key in AIMED:
            part = models.part_of(rows.rows(chosen), {})
            found = curves.curve(part, FOLDS)
            own = {"llama8b": LLAMA, "qwen72b": QWEN}.get(key)
            if own is not None:
                found["features, other models' answers known"] = curves.told_by_others(rows, part, own, FOLDS)
            print(table(f"{name}: by how many answers are learnt from", found))


def _noise(rows: Table, folder: Path) -> None:
    found = [*noise.of_samples(folder), noise.of_own(), *noise.of_hosts(rows)]
    found += [noise.by_all_others(rows, LLAMA, "Llama-3.1-8B"), noise.by_all_others(rows, QWEN, "Qwen2-72B")]
    print(table("noise: what even other answers to the same prompt tell", {f"{one.name[:43]}": one.scores for one in found}))


def _live(rows: Table, figures: Figures, *, encoder: bool) -> None:
    told = live.Told(live.encoded if encoder else None)
    source = rows.of("source")
    held = [live.unseen(name, part, told.of(part)) for name in HELD_OUT for part in [rows.rows(source == name)]]
    live.show_unseen(held)
    count = sum(one.rows for one in held)
    figures["cold_logmae"] = sum(one.cold["tagger"] * one.rows for one in held) / count
    figures["cold_constant_logmae"] = sum(one.cold["constant"] * one.rows for one in held) / count
    figures["unseen30_logmae"] = sum(one.log_mae["tagger"] * one.rows for one in held) / count
    figures["unseen30_tau_within"] = float(np.mean([one.tau["tagger"] for one in held]))
    figures["shipped_vs_constant"] = max(one.log_mae["tagger"] / one.log_mae["constant"] for one in held)
    streams = []
    for name, chosen in (
        ("Llama-3.1-8B", np.isin(rows.models, LLAMA)),
        ("Qwen2-72B", np.isin(rows.models, QWEN)),
        *[(name, source == name) for name in (*HELD_OUT, "moss", "mtbench101")],
    ):
        part = rows.rows(chosen)
        streams.append(live.stream(name, part, told.of(part)))
    part = rows.rows(np.isin(rows.models, LLAMA))
    streams.append(live.stream("Llama-3.1-8B, source after source", part, told.of(part), drifting=True))
    live.show_streams(streams)
    covered = [share for one in streams for share in one.coverage_q90]
    figures["coverage_q90"] = max(covered, key=lambda share: abs(share - 0.9))
    figures["pinball_vs_running"] = max(one.pinball / one.pinball_running for one in streams)
    for one in streams[:3]:
        figures[f"stream_{one.name.split('_')[0].replace('-', '_').lower()}_logmae"] = one.log_mae


def _aims(figures: Figures) -> None:
    print("\naims")
    for key, aim in AIMS.items():
        got = figures.get(key)
        bound = key.endswith("_gain_low")  # over the best of all baselines, so only where they are all there
        if got is not None and (figures.get("minilm") or not bound):
            held = got >= aim if "tau" in key else got <= aim
            print(f"{key:36s} {got:7.3f}  aim {aim:6.3f}  {'held' if held else 'missed'}")
    got = figures.get("coverage_q90")
    if got is not None:
        print(f"{'coverage_q90':36s} {got:7.3f}  aim 0.88..0.92  {'held' if 0.88 <= got <= 0.92 else 'missed'} (worst window)")


if __name__ == "__main__":
    main()
