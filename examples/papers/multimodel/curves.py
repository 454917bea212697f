"""E11 to E13: what a swap costs by bytes and by progress, and what a part of the layers on the GPU costs, with plots."""

import math
from random import Random

from gateway.sim.html import Plot, exact, svg
from gateway.sim.paper import Picture, Section, table
from gateway.sim.stats import mean
from predictor.cost import GB, SwapCosts
from predictor.hosts import host_profiles
from predictor.offload import from_ends

CHECKPOINTS = (100, 250, 500, 1000, 1500, 2000, 3000, 4000, 5000)
# name, weights in GB (half precision), KV bytes per token, the published penalty on the RTX 5000 Ada
CHECKED = (("Qwen2.5-3B", 6.2, 36_864, 3.0), ("Qwen3-8B", 16.4, 147_456, math.nan), ("Qwen2.5-14B", 29.5, 196_608, 7.3))
# Qwen2.5-Coder-14B Q4_K_M (48 layers) by llama.cpp on an RTX 5060 Ti: layers on the GPU, tokens per second (public).
SWEEP = ((0, 2.89), (8, 3.58), (16, 4.24), (24, 5.61), (32, 7.26), (40, 12.5), (48, 43.18))
# Assumed ends (tokens per second on the GPU and on the CPU), from memory bandwidths over bytes read per token.
ENDS = (
    ("Llama 3 8B Q4, RTX 5000", 95.0, 11.0),
    ("Llama 3 8B Q4, A6000", 125.0, 11.0),
    ("Qwen3 32B Q4, RTX 5000", 25.0, 3.0),
    ("Qwen3 32B Q4, A6000", 33.0, 3.0),
)


def penalties() -> Section:
    """E11 and E12."""
    costs, rows, points = SwapCosts(host_profiles()), [], []
    for name, size, kv, paper in CHECKED:
        at = [costs.preempt(name, size * GB, "rtx-5000-ada", "disk", kv * tokens).mean_s for tokens in CHECKPOINTS]
        bare = costs.preempt(name, size * GB, "rtx-5000-ada", "disk").mean_s
        other = costs.preempt(name, size * GB, "a6000", "disk").mean_s
        points.append((size, bare))
        shown = "" if math.isnan(paper) else f"{paper:.1f}"
        row = [
            name,
            f"{size:.1f}",
            shown,
            f"{bare:.2f}",
            f"{other:.2f}",
            f"{(at[-1] - at[0]) / bare:.1%}",
            f"{bare / at[-1]:.1%}",
        ]
        rows.append(row)
    text = [
        "A job of 7,000 tokens is preempted at nine points from 100 to 5,000: unload, run another, load, resume; KV both ways.",
        "*By construction*: the two published penalties fix the line (1.9 s + bytes / 5.4 GB/s), so that they come out is no",
        "finding, nor that the penalty is flat in progress but for the KV term. What the model says beyond: the 8B's penalty,",
        "and that KV of a long job is up to some 3 % of it, a little more than the 1.5 % published.",
    ]
    head = [
        "model",
        "GB",
        "published, s",
        "RTX 5000 Ada, s",
        "A6000 (inferred), s",
        "grows from 100 to 5,000 tokens",
        "reload share",
    ]
    learned = _third_size()
    text += table(head, rows)
    text.append(
        "Learned, not by construction: a host whose loads take 26 s + bytes / 1.1 GB/s (±5 %), seen four times each at 2 and "
        f"20 GB: the prediction at 9 GB errs {learned:.1%} on average over 20 such hosts (priors of an RTX 5000 Ada)."
    )
    plot = Plot("Penalty of a preemption, s", "weights, GB", (exact("RTX 5000 Ada", points),))
    return Section("E11 and E12: what a swap costs", text, {"third_size_err": learned}, {"penalty": drawn(plot)})


def _third_size() -> float:
    errors = []
    for seed in range(20):
        rng, costs = Random(seed), SwapCosts(host_profiles())
        for _ in range(4):
            for size in (2.0, 20.0):
                took_s = (26 + size / 1.1) * rng.uniform(0.95, 1.05)
                costs.observe(f"m{size}", size * GB, "rtx-5000-ada", "disk", "gpu", took_s)
        guessed = costs.predict("third", 9 * GB, "rtx-5000-ada", "disk", "gpu").mean_s
        errors.append(abs(guessed / (26 + 9 / 1.1) - 1))
    return mean(errors)


def offload() -> Section:
    """E13."""
    top, bottom = SWEEP[-1][1], SWEEP[0][1]
    curve, rows, harmonic, linear = from_ends(top, bottom), [], [], []
    for layers, rate in SWEEP[1:-1]:
        share = layers / SWEEP[-1][0]
        straight = bottom + share * (top - bottom)
        harmonic.append(abs(curve.rate_per_s(share) / rate - 1))
        linear.append(abs(straight / rate - 1))
        rows.append([f"{layers}/48", f"{rate:.2f}", f"{curve.rate_per_s(share):.2f}", f"{straight:.2f}"])
    text = [
        "Decode rate with a part of the layers on the GPU. The two ends are given, the five points between are predicted.",
        *table(["layers", "measured, tok/s", "harmonic law", "straight line"], rows),
        f"Mean error: harmonic {mean(harmonic):.1%} (worst {max(harmonic):.1%}), straight line {mean(linear):.0%}. "
        "One public sweep with all its points was found; two more were wanted.",
        "",
        "Below, curves for the study's models from *assumed* ends; the shapes follow from the law. A faster GPU with",
        "the same CPU loses relatively more at the same share, as published; a model that never reaches 100 % only shows the",
        "flat part.",
    ]
    fine = [i / 40 for i in range(41)]
    measured = exact("measured", [(layers / 48, rate) for layers, rate in SWEEP])
    law = exact("harmonic", [(x, curve.rate_per_s(x)) for x in fine])
    straight_line = exact("linear", [(x, bottom + x * (top - bottom)) for x in (0.0, 1.0)])
    sweep = Plot(
        "14B Q4, RTX 5060 Ti: tokens per second",
        "share of layers on the GPU",
        (measured, law, straight_line),
    )
    lines = []
    for name, fast, slow in ENDS:
        one = from_ends(fast, slow)
        lines.append(exact(name, [(x, one.rate_per_s(x) / fast) for x in fine]))
    shapes = Plot("Rate as a share of all on the GPU (assumed ends)", "share of layers on the GPU", tuple(lines))
    figures = {"harmonic_err": mean(harmonic), "linear_err": mean(linear)}
    return Section("E13: offloading", text, figures, {"offload": drawn(sweep), "offload_shapes": drawn(shapes)})


def drawn(plot: Plot) -> Picture:
    """With its title below a section."""
    return Picture(plot.title, svg(plot))
