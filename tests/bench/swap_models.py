"""Makes random-weight checkpoints of given sizes for `make bench-swap-times`. Runs in the engine's environment, offline.

usage: swap_models.py TOKENIZER_FOLDER TARGET GB...      writes TARGET/llama-GB for each; a folder that is there is kept.
One shape of layer, so that sizes differ by their number alone; what the weights say does not matter, nothing is asked.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, INNER, HEAD, KV_HEADS = 2048, 5632, 64, 4
LAYER_BYTES = 2 * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * HEAD * KV_HEADS + 3 * HIDDEN * INNER)


def write(tokenizer: Path, target: Path, gigabytes: float) -> None:
    """A checkpoint of about that many GB (1e9 bytes) in bf16."""
    shutil.copytree(tokenizer, target, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=max(1, round(gigabytes * 1e9 / LAYER_BYTES)),
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        max_position_embeddings=2048,
        dtype="bfloat16",
    )
    torch.set_default_dtype(torch.bfloat16)
    LlamaForCausalLM(config).save_pretrained(target)


def main() -> None:
    """The command."""
    tokenizer, root = Path(sys.argv[1]), Path(sys.argv[2])
    for size in sys.argv[3:]:
        target, unfinished = root / f"llama-{size}", root / f"llama-{size}.unfinished"
        if not target.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            write(tokenizer, unfinished, float(size))
            unfinished.rename(target)
        sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
