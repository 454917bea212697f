"""SGLang's own server on this machine's CPU, from the installed wheel: its HTTP server, tokenizer, scheduler, cache of prefixes
and detokenizer, and its own plain torch code where it would use kernels. Takes SGLang's options.

Its processes are forked. SGLang spawns them, since CUDA needs that, and then each imports everything again: a start took
27 s of CPU instead of 10.
"""

import multiprocessing
import os
import sys
from pathlib import Path

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than all of the tests
sys.path.insert(0, str(Path(__file__).parent))

import stand_ins

stand_ins.put_in()


def _forked(*_: object, **__: object) -> None:
    _set_start_method("fork", force=True)


_set_start_method = multiprocessing.set_start_method
multiprocessing.set_start_method = _forked

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    run_server(prepare_server_args(sys.argv[1:]))
