#!/bin/bash
# Installs the real engine into VENV_DIR and makes its two models in MODEL_DIR. Safe to repeat: a second run is instant.
# usage: setup.sh VENV_DIR MODEL_DIR        (PYTHON=python3.11 setup.sh ... for another interpreter, 3.11 to 3.14)
# Needs about 2.7 GB of disk and some 510 MB of downloads; see requirements/engine.lock for where torch comes from.
set -euo pipefail
if [ $# -ne 2 ]; then
    echo "usage: setup.sh VENV_DIR MODEL_DIR" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
lock=$here/../../requirements/engine.lock
umask 022
mkdir -p "$1" "$2"
environment=$(cd "$1" && pwd)
models=$(cd "$2" && pwd)

# A stamp holds the hash of what a step was made from, and is written last: a step that was cut short runs again.
hash_of() { cat "$@" | sha256sum | cut -d " " -f 1; }
is_done() { [ "$(cat "$1/.leeway-stamp" 2>/dev/null)" = "$2" ]; }

wanted=$(hash_of "$lock")
if ! is_done "$environment" "$wanted"; then
    echo "install the engine into $environment"
    # Files of an earlier list must not stay beside the new ones, so an environment of ours is emptied first.
    clear=()
    if [ -e "$environment/pyvenv.cfg" ]; then clear=(--clear); fi
    "${PYTHON:-python3}" -m venv "${clear[@]}" "$environment"
    "$environment/bin/pip" install -q --disable-pip-version-check --no-deps -r "$lock"
    if ! "$environment/bin/python" -c "import sys, torch; sys.exit(torch.version.cuda is not None)" 2>/dev/null; then
        echo "pip took a torch that is not the CPU build (or does not load): add PyTorch's CPU package index by" >&2
        echo "PIP_EXTRA_INDEX_URL and run this again; requirements/engine.lock says more" >&2
        exit 1
    fi
    echo "$wanted" >"$environment/.leeway-stamp"
fi

wanted=$(hash_of "$lock" "$here/make_models.py")
if ! is_done "$models" "$wanted"; then
    echo "make the models in $models"
    HF_HUB_OFFLINE=1 TQDM_DISABLE=1 TRANSFORMERS_VERBOSITY=error "$environment/bin/python" "$here/make_models.py" "$models"
    echo "$wanted" >"$models/.leeway-stamp"
fi
