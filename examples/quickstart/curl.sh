#!/bin/sh
# The same with curl: curl.sh [BASE_URL [MODEL]]
set -eu
base=${1:-http://127.0.0.1:8080}

echo "what is served"
curl -sS --fail-with-body "$base/v1/models"
echo

model=${2:-$(curl -sS --fail "$base/v1/models" | sed 's/.*"data":\[{"id":"\([^"]*\)".*/\1/')}
ask() {
    curl -sS --fail-with-body -N "$base/v1/chat/completions" -H 'content-type: application/json' -d "$1"
    echo
}

echo "a plain answer"
ask "{\"model\": \"$model\", \"max_tokens\": 16, \"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}]}"

echo "a streamed one (-N shows each event as it comes)"
ask "{\"model\": \"$model\", \"max_tokens\": 16, \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}]}"
