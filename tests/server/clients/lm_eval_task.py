#!/usr/bin/env python3
"""lm-eval through /v1/completions: a tiny task of choices, whose likelihoods come from echoed
logprobs. The same scores come twice."""
import importlib.metadata
import json
import os
import subprocess
import tempfile

from checks import Checks, arguments

TASK = """task: tiny
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/tiny.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""
DOCS = [("The package manager of Debian is called", [" apt", " the moon", " green"]),
        ("To install a package, run", [" apt-get install", " a horse", " seven"]),
        ("This software is under the GNU General Public", [" License", " banana", " water"]),
        ("If you find a bug, please report it to the", [" maintainer", " sky", " apple"])]


def main():
    args = arguments()
    check = Checks(f"lm-eval {importlib.metadata.version('lm-eval')}")
    scores = []
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tiny.jsonl"), "w") as file:
            for question, choices in DOCS:
                file.write(json.dumps({"question": question, "choices": choices}) + "\n")
        with open(os.path.join(folder, "tiny.yaml"), "w") as file:
            file.write(TASK.format(folder=folder))
        for i in range(2):
            out = os.path.join(folder, f"out{i}")
            run = subprocess.run(
                [args.binary, "run", "--model", "local-completions", "--model_args",
                 f"base_url={args.url}/v1/completions,model={args.answers['model']},"
                 f"tokenizer={args.model_folder},tokenizer_backend=huggingface,num_concurrent=2",
                 "--tasks", "tiny", "--include_path", folder, "--output_path", out,
                 "--log_samples"],
                capture_output=True, text=True, timeout=300,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                     "HOME": folder})
            if run.returncode:
                print(run.stdout[-3000:], run.stderr[-3000:])
            check(run.returncode == 0, f"ends with {run.returncode}")
            [samples] = [os.path.join(place, name) for place, _, names in os.walk(out)
                         for name in names if name.startswith("samples_")]
            with open(samples) as file:
                scores.append([json.loads(line)["filtered_resps"] for line in file])
    check(len(scores[0]) == len(DOCS), "every document is scored")
    check(scores[0] == scores[1], "the same likelihoods again")
    best = [max(range(len(one)), key=lambda i, one=one: float(one[i][0])) for one in scores[0]]
    check(best.count(0) >= 3, f"the sensible choices win: {best}")
    check.done(f"accuracy {best.count(0) / len(DOCS)}")


if __name__ == "__main__":
    main()
