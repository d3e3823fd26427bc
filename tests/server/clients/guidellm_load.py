#!/usr/bin/env python3
"""A short load by guidellm: every request succeeds and has the tokens that were asked for."""
import importlib.metadata
import json
import os
import subprocess
import tempfile

from checks import Checks, arguments


def main():
    args = arguments(requests=24)
    check = Checks(f"guidellm {importlib.metadata.version('guidellm')}")
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        run = subprocess.run(
            [args.binary, "run",
             "--backend", f"kind=openai_http,target={args.url},model={args.answers['model']}",
             "--tokenizer", f"kind=huggingface_auto,model={args.model_folder}",
             "--profile", "kind=concurrent,streams=4",
             "--constraint", f"kind=max_requests,count={args.requests}",
             "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=24",
             "--output", f"kind=json,path={report}", "--disable-console"],
            capture_output=True, text=True, timeout=300,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": folder})
        if run.returncode:
            print(run.stdout[-3000:], run.stderr[-3000:])
        check(run.returncode == 0, f"ends with {run.returncode}")
        with open(report) as file:
            benchmark = json.load(file)["benchmarks"][0]
    totals = benchmark["metrics"]["request_totals"]
    check(totals["successful"] >= args.requests and totals["errored"] == 0, f"requests: {totals}")
    tokens = benchmark["metrics"]["output_token_count"]["successful"]
    check(tokens["min"] == tokens["max"] == 24, f"output tokens: {tokens['min']}..{tokens['max']}")
    check.done(f"{totals['successful']} requests")


if __name__ == "__main__":
    main()
