#!/bin/bash
# Builds the bench's tools and installs the rivals into DIR. Safe to repeat: what is there at the right version stays.
# usage: setup.sh DIR [aiperf]        (PYTHON=python3.11 setup.sh DIR for another interpreter)
# nginx and haproxy come from Debian: apt-get install nginx-light haproxy
set -euo pipefail
if [ $# -ne 1 ] && [ "$*" != "$1 aiperf" ]; then
    echo "usage: setup.sh DIR [aiperf]" >&2
    exit 2
fi
sources=$(cd "$(dirname "$0")/src" && pwd)
python=$(command -v "${PYTHON:-python3}") || { echo "no interpreter ${PYTHON:-python3}" >&2; exit 2; }
case $python in /*) ;; *) python=$PWD/$python ;; esac
referee=${2:-}
mkdir -p "$1"
cd "$1"
umask 022

# A tool is rebuilt when its source is not the one it was built from.
tool() {
    local sum
    sum=$(sha256sum <"$sources/$1.c")
    if [ -x "$1" ] && [ "$(cat "$1.sum" 2>/dev/null)" = "$sum" ]; then return; fi
    echo "build $1"
    gcc -O2 -Wall -o "$1.new" "$sources/$1.c"
    mv "$1.new" "$1"
    echo "$sum" >"$1.sum"
}

# An environment per rival, since their dependencies differ.
rival() {
    local environment=$1 package=$2 version=$3 found
    found=$("$environment/bin/python" -c \
        "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))" "$package" 2>/dev/null || true)
    if [ "$found" = "$version" ]; then return; fi
    echo "install $package $version"
    [ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
    "$environment/bin/pip" install -q --disable-pip-version-check "$package==$version"
}

tool fake_upstream
tool loadgen
rival v_vr vllm-router 0.1.17
rival v_sr sglang-router 0.3.2
rival v_smg smg 1.13.0
if [ -n "$referee" ]; then rival v_aiperf aiperf 0.13.0; fi
for program in nginx haproxy; do
    if ! PATH="$PATH:/usr/sbin" command -v $program >/dev/null; then
        echo "$program is missing: apt-get install nginx-light haproxy (the bench reports it and goes on)" >&2
    fi
done
