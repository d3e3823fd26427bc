#!/usr/bin/env bash
# curl against a running server: curl.sh http://127.0.0.1:8000
set -euo pipefail
url=$1
check() {  # check WHAT PATTERN < output
  local out
  out=$(cat)
  grep -q -- "$2" <<< "$out" || { echo "FAILED: $1: $out"; exit 1; }
}
curl -sf "$url/health" | check health '"ok"'
curl -sf "$url/v1/models" | check models '"object":"list"'
curl -sf "$url/v1/completions" -d '{"prompt": "The", "max_tokens": 5}' | check completion '"text":'
curl -sfN "$url/v1/completions" -d '{"prompt": "The", "max_tokens": 5, "stream": true}' |
  check stream 'data: \[DONE\]'
curl -sfN "$url/v1/chat/completions" \
  -d '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": true}' |
  check chat '"delta":'
curl -s "$url/v1/completions" -d '{' | check "broken JSON" '"code":"invalid_json"'
curl -s -o /dev/null -w '%{http_code}' "$url/v1/completions" -d '{"prompt": 7}' | check refusal 400
curl -sf "$url/metrics" | check metrics replayssm_new_tokens_total
# A body large enough for curl to ask first (Expect: 100-continue).
python3 -c 'print("{\"prompt\": [1, 2], \"max_tokens\": 1}" + " " * 2000000)' |
  curl -sf "$url/v1/completions" -H 'Expect: 100-continue' --data-binary @- |
  check "large body" '"text":'
# Leaving in the middle.
timeout 0.3 curl -sN "$url/v1/completions" \
  -d '{"prompt": "The", "max_tokens": 4000, "ignore_eos": true, "stream": true}' > /dev/null || true
curl -sf "$url/health" | check "health afterwards" '"ok"'
echo "curl: all passed"
