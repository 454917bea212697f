"""Serves one GGUF model by llama.cpp's own server code, from the package `xllamacpp` (wheels for CPU, CUDA, ROCm, Vulkan).

usage: python llama_server.py MODEL.gguf NAME PORT LAYERS [THREADS]     (LAYERS: how many of its layers go to the GPU)
"""

import signal
import sys

import xllamacpp


def main() -> None:
    """Until SIGTERM."""
    path, name, port, layers = sys.argv[1:5]
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {name}
    params.port = int(port)
    params.n_gpu_layers = int(layers)
    params.n_ctx = 2048
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    main()
