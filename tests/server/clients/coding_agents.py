#!/usr/bin/env python3
"""A coding agent as it is published, on a scripted task: it is asked for a file, the model answers
with the call (or the text) that writes it, the agent does so, sends the result, and ends.

The agents' requests pass a proxy that adds the fields of scripted.py and counts errors; all else is
the agent's own. --agent codex | claude | aider | mini, --binary its program.
"""
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile

from checks import Checks, arguments
from scripted import ScriptProxy

TASK = "Write hello.py which prints hello."


def results(body):
    """Tools' results that a request carries, in any of the three APIs."""
    text = json.dumps(body.get("input") or body.get("messages"))
    return len(re.findall(r'"type": "(?:function_call_output|tool_result)"|"role": "tool"', text))


def codex(args, url, env, _home):
    provider = (f'model_providers.local={{name="local",base_url="{url}/v1",wire_api="responses",'
                'request_max_retries=0,stream_max_retries=0}')
    return [args.binary, "exec", "--skip-git-repo-check", "-s", "danger-full-access", "-m",
            args.answers["model"], "-c", 'model_provider="local"', "-c", provider, TASK]


def claude(args, url, env, _home):
    env.update(ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="none", IS_SANDBOX="1",
               DISABLE_TELEMETRY="1", DISABLE_AUTOUPDATER="1",
               CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
               ANTHROPIC_SMALL_FAST_MODEL=args.answers["model"])
    return [args.binary, "-p", TASK, "--model", args.answers["model"], "--tools", "Bash,Read,Edit",
            "--dangerously-skip-permissions"]


def aider(args, url, env, _home):
    env.update(OPENAI_API_BASE=url + "/v1", OPENAI_API_KEY="none", AIDER_ANALYTICS="false",
               LITELLM_LOCAL_MODEL_COST_MAP="True")
    return [args.binary, "--model", "openai/" + args.answers["model"], "--message", TASK,
            "--no-git", "--yes-always", "--edit-format", "whole", "--no-check-update",
            "--no-show-model-warnings", "--no-analytics", "--no-pretty", "--map-tokens", "0",
            "--no-suggest-shell-commands"]


def mini(args, url, env, home):
    env.update(OPENAI_API_BASE=url + "/v1", OPENAI_API_KEY="none", MSWEA_CONFIGURED="true",
               MSWEA_COST_TRACKING="ignore_errors", MSWEA_SILENT_STARTUP="1",
               MSWEA_GLOBAL_CONFIG_DIR=home, LITELLM_LOCAL_MODEL_COST_MAP="True")
    return [args.binary, "-m", "openai/" + args.answers["model"], "-t", TASK, "-y",
            "--exit-immediately", "-o", os.path.join(home, "run.json")]


# The agent's command, its package, and the answers of its script in order.
AGENTS = {"codex": (codex, "openai-codex-cli-bin", ["codex", "text"]),
          "claude": (claude, "claude-agent-sdk", ["claude", "claude_text"]),
          "aider": (aider, "aider-chat", ["aider"]),
          "mini": (mini, "mini-swe-agent", ["bash", "bash"])}


def main():
    args = arguments(agent="codex")
    make, package, script = AGENTS[args.agent]
    n_sent = 0

    def choose(path, body):
        nonlocal n_sent
        if path.endswith("count_tokens") or (args.agent != "aider" and not body.get("tools")):
            return None
        step = n_sent if args.agent == "aider" else results(body)
        n_sent += 1
        return args.answers[script[min(step, len(script) - 1)]]

    proxy = ScriptProxy(args.url, choose)
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as work:
        os.chmod(args.binary, 0o755)
        env = {"HOME": home, "PATH": os.environ["PATH"], "CODEX_HOME": home, "TERM": "dumb",
               "LANG": "C.UTF-8"}
        command = make(args, proxy.url, env, home)
        run = subprocess.run(command, env=env, cwd=work, stdin=subprocess.DEVNULL, text=True,
                             capture_output=True, timeout=300)
        check = Checks(f"{package} {importlib.metadata.version(package)}")
        path = os.path.join(work, "hello.py")
        if run.returncode or proxy.failures() or not os.path.exists(path):
            print(run.stdout[-3000:], run.stderr[-3000:], proxy.seen,
                  *(json.dumps(body.get("input") or body.get("messages"))[-1500:]
                    for body in proxy.bodies), sep="\n")
        check(run.returncode == 0, f"ends with {run.returncode}")
        check(not proxy.failures(), "no request fails")
        check(os.path.exists(path), "the file is there")
        said = subprocess.run([sys.executable, path], capture_output=True, text=True).stdout
        check(said == "hello\n", "and prints hello")
        steps = max([results(body) for body in proxy.bodies], default=0)
        check(args.agent == "aider" or steps == 1, "the tool's result came back")
        check(len(proxy.seen) == len(script), f"no more requests than answers: {proxy.seen}")
    proxy.close()
    check.done(f"{len(proxy.seen)} requests, {steps} results of tools")


if __name__ == "__main__":
    main()
