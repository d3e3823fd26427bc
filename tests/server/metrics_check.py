#!/usr/bin/env python3
"""Reads /metrics of a server of its own with Prometheus' own parser (pip install
prometheus_client) and checks what dashboards and routers rely on.

    tests/server/metrics_check.py --binary build/replayssm"""

import argparse
import http.client
import json
import os
import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build", "replayssm"))
    args = parser.parse_args()
    server = subprocess.Popen([args.binary, "serve", "-m", os.path.join(ROOT, "models", "demo-gdn"),
                               "--port", "0", "--memory", "0.6", "--served-model-name", 'a"b\\c'],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port = next(int(line.rsplit(":", 1)[1]) for line in server.stdout if line.startswith("serving"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(method, path, body=None):
        connection.request(method, path, json.dumps(body) if body else None,
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()

    n_tokens = 0
    for max_tokens in (1, 5, 20):
        status, text = ask("POST", "/v1/completions",
                           {"prompt": "The purpose of", "max_tokens": max_tokens, "who": 1,
                            "ignore_eos": True})
        assert status == 200, text
        n_tokens += json.loads(text)["usage"]["completion_tokens"]
    text = ask("GET", "/metrics")[1]
    server.terminate()
    assert server.wait(timeout=60) == 0

    samples, types = {}, {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        types[family.name] = family.type
        for sample in family.samples:
            samples[(sample.name, tuple(sorted(sample.labels.items())))] = sample.value
    model = ("model_name", 'a"b\\c')
    of = lambda name, *labels: samples[(name, tuple(sorted((model, *labels))))]
    assert of("vllm:generation_tokens_total") == n_tokens
    assert of("vllm:request_success_total", ("finished_reason", "length")) == 3
    assert of("vllm:request_success_total", ("finished_reason", "abort")) == 0
    assert 0 <= of("vllm:kv_cache_usage_perc") <= 1
    assert of("vllm:num_requests_running") == of("vllm:num_requests_waiting") == 0
    assert samples[("replayssm_warnings_total", ())] == 3
    histograms = [name for name, kind in types.items() if kind == "histogram"]
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds",
                 "e2e_request_latency_seconds", "request_queue_time_seconds",
                 "request_prefill_time_seconds", "request_decode_time_seconds",
                 "request_time_per_output_token_seconds"):
        assert f"vllm:{name}" in histograms, name
    for name in histograms:
        buckets = [(float(dict(labels)["le"]), dict(labels)["le"], value)
                   for (sample, labels), value in samples.items() if sample == name + "_bucket"]
        buckets.sort()
        assert [b[2] for b in buckets] == sorted(b[2] for b in buckets), name
        assert buckets[-1][1] == "+Inf" and buckets[-1][2] == of(name + "_count"), name
        assert all(len(le) <= 6 for _, le, _ in buckets), [le for _, le, _ in buckets]
    assert of("vllm:inter_token_latency_seconds_count") == n_tokens - 3
    assert of("vllm:e2e_request_latency_seconds_count") == 3
    print(f"{len(samples)} samples of {len(types)} metrics, {len(histograms)} histograms: all right")


if __name__ == "__main__":
    sys.exit(main())
