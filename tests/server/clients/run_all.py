#!/usr/bin/env python3
"""Clients from PyPI against the demo model: makes their environments, starts a server and runs all.

    tests/server/clients/run_all.py --binary build/replayssm [--only openai,anthropic]

Not part of `make test`: it downloads packages. --environments keeps them for the next time.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "..", "..", ".."))
sys.path.insert(0, HERE)
from scripted import call, make_model  # noqa: E402

HELLO = "print('hello')"
ANSWERS = {
    "call": "<think>\nI look it up.\n</think>\n\nLet me see.\n" +
            call("package_version", {"name": "apt"}),
    "text": "All done with it.",
    "codex": call("exec_command", {"cmd": f'echo "{HELLO}" > hello.py'}),
    # Its prompts open the reasoning.
    "claude": "I write it.\n</think>\n\n" +
              call("Bash", {"command": f'echo "{HELLO}" > hello.py', "description": "Writes it"}),
    "claude_text": "Good.\n</think>\n\nAll done with it.",
    "aider": f"hello.py\n```\n{HELLO}\n```\n",
    # Said twice: writes, then ends.
    "bash": call("bash", {"command": "test -e hello.py && "
                                     "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; "
                                     f'echo "{HELLO}" > hello.py'}),
}

# environment: (packages, [(name, script, arguments)]); a program's place is a glob in it.
GROUPS = {
    "none": ([], [("reuse", "agent_reuse.py", [])]),
    "sdk": (["openai", "anthropic", "langchain-openai", "litellm"],
            [("openai", "openai_client.py", []), ("responses", "openai_responses.py", []),
             ("anthropic", "anthropic_client.py", []), ("frameworks", "frameworks.py", [])]),
    "codex": (["openai-codex-cli-bin"],
              [("codex", "coding_agents.py", ["--agent", "codex", "--binary", "**/bin/codex"])]),
    "claude": (["claude-agent-sdk"],
               [("claude", "coding_agents.py",
                 ["--agent", "claude", "--binary", "**/_bundled/claude"])]),
    "aider": (["aider-chat"],
              [("aider", "coding_agents.py", ["--agent", "aider", "--binary", "bin/aider"])]),
    "mini": (["mini-swe-agent"],
             [("mini", "coding_agents.py", ["--agent", "mini", "--binary", "bin/mini"])]),
    "guidellm": (["guidellm"], [("guidellm", "guidellm_load.py", ["--binary", "bin/guidellm"])]),
    "lm_eval": (["lm-eval[api]", "transformers"],
                [("lm_eval", "lm_eval_task.py", ["--binary", "bin/lm_eval"])]),
}


def environment(folder, name, packages):
    path = os.path.join(folder, name)
    if not os.path.exists(os.path.join(path, "ready")):
        subprocess.run([sys.executable, "-m", "venv", path], check=True)
        if packages:
            pip = os.path.join(path, "bin", "pip")
            subprocess.run([pip, "install", "-q", *packages], check=True)
        open(os.path.join(path, "ready"), "w").close()
    return path


def start(binary, model, log):
    command = [binary, "serve", "-m", model, "--port", "0", "--memory", "2", "--threads", "2",
               "--max-positions", "32768", "--draft", "ngram"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return server, found.group()
    sys.exit("the server did not start")


def stats(url):
    with urllib.request.urlopen(url + "/stats") as answer:
        return json.load(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build", "replayssm"))
    parser.add_argument("--environments", default="/tmp/replayssm-clients")
    parser.add_argument("--only", default="", help="names, with commas between")
    args = parser.parse_args()
    wanted = set(filter(None, args.only.split(",")))
    os.makedirs(args.environments, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "scripted")
        ids = make_model(os.path.join(ROOT, "models", "demo-gdn"), model, ANSWERS)
        answers = json.dumps({**ids, "model": "scripted"})
        with open(os.path.join(folder, "log"), "w+") as log:
            server, url = start(args.binary, model, log)
            try:
                for group, (packages, scripts) in GROUPS.items():
                    scripts = [one for one in scripts if not wanted or one[0] in wanted]
                    if not scripts:
                        continue
                    place = environment(args.environments, group, packages)
                    for name, script, more in scripts:
                        more = [glob.glob(os.path.join(place, x), recursive=True)[0]
                                if i and more[i - 1] == "--binary" else x
                                for i, x in enumerate(more)]
                        begin, before = time.time(), stats(url)
                        code = subprocess.run(
                            [os.path.join(place, "bin", "python"), os.path.join(HERE, script),
                             "--url", url, "--answers", answers, "--model-folder", model,
                             *more]).returncode
                        after = stats(url)
                        tokens = [after[x] - before[x] for x in ("prompt_tokens", "cached_tokens")]
                        results.append((name, code, time.time() - begin, *tokens))
            finally:
                server.terminate()
                results.append(("server's end", server.wait(60), 0, 0, 0))
                log.seek(0)
                if lines := [line for line in log if "status=500" in line]:
                    print("the server failed:", *lines[:10], sep="\n")
                    results.append(("no 500 in the log", 1, 0, 0, 0))
    print(f"{'':20} {'':8} {'seconds':>8} {'prompt tokens':>14} {'cached':>8}")
    for name, code, seconds, n_prompt, n_cached in results:
        print(f"{name:20} {'FAILED' if code else 'ok':8} {seconds:8.1f} {n_prompt:14} {n_cached:8}")
    sys.exit(any(result[1] for result in results))


if __name__ == "__main__":
    main()
