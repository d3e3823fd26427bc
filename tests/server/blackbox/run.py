#!/usr/bin/env python3
"""Black-box tests against a running server, with everything on at once: drafts of a model, the
prefix cache, several clients, memory filled with NaN. What is compared is compared to the bit.

    tests/server/blackbox/run.py --binary build/replayssm                     # all of it, minutes
    tests/server/blackbox/run.py --binary build/replayssm --quick --only 03,09
"""

import argparse
import os
import sys
import time
import traceback

import cases_agents
import cases_api
import cases_drafts
import cases_files
import cases_life
import cases_reuse
from client import N_CLIENTS, ROOT, HttpError, Server


class Run:
    """A model, the flags of its server, and a server that the tests share."""

    def __init__(self, args):
        self.binary = os.path.realpath(args.binary)
        self.model = os.path.realpath(args.model)
        self.quick = args.quick
        self.sequences = N_CLIENTS
        self.draft_tokens = args.draft_tokens
        self.drafters = ["none", "ngram", "default"]
        if args.draft not in ("off", "ngram"):
            self.drafters.append("mtp" if args.draft == "mtp" else "model")
        self.interval = self.chunk = args.interval
        self.max_positions = args.max_positions
        self.flags = ["--memory", str(args.memory), "--max-sequences", str(self.sequences),
                      "--max-positions", str(self.max_positions), "--threads", str(args.threads),
                      "--draft", args.draft, "--draft-tokens", str(self.draft_tokens),
                      "--snapshot-interval", str(self.interval), "--chunk-tokens", str(self.chunk)]
        if args.device == "cuda":  # only the exact mode promises bits
            self.flags += ["--device", "cuda", "--exact"]
        if args.checkpoint:
            self.flags += ["--checkpoint-dtype", args.checkpoint]
        self.servers = []
        self.server = self.start()
        self.grammars = self.has_grammars()

    def start(self, more=()):
        self.servers.append(Server(self.binary, self.model, [*self.flags, *more]))
        return self.servers[-1]

    def has_grammars(self):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8,
                "response_format": {"type": "json_object"}}
        try:
            self.server.ask(body, "/v1/chat/completions")
        except HttpError as error:
            return error.status != 501
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "demo-gdn"))
    parser.add_argument("--draft", default=os.path.join(ROOT, "models", "demo-draft"))
    parser.add_argument("--draft-tokens", type=int, default=7)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--interval", type=int, default=64)
    parser.add_argument("--max-positions", type=int, default=4096)
    parser.add_argument("--memory", default="0.4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="numbers of tests, as 01,13")
    args = parser.parse_args()

    cases = {}
    for module in (cases_drafts, cases_reuse, cases_life, cases_files, cases_api,
                   cases_agents):
        for name, case in vars(module).items():
            if name.startswith("test_"):
                cases[name[5:7]] = (name[5:], case)
    chosen = args.only.split(",") if args.only else sorted(cases)
    for number in chosen:
        if number not in cases:
            parser.error(f"--only {number}: there is no such test")
    run = Run(args)
    try:
        return run_cases(run, cases, chosen, args)
    finally:
        for server in run.servers:
            if server.process.poll() is None:
                server.kill()


def run_cases(run, cases, chosen, args):
    failed = []
    for number in chosen:
        name, case = cases[number]
        start = time.monotonic()
        try:
            case(run)
            run.server.forget()
            assert run.server.process.poll() is None, "the server is gone"
            result = "ok"
        except Exception:  # the others still run
            traceback.print_exc()
            failed.append(name)
            result = "FAILED"
        print(f"{result:6} {name} {time.monotonic() - start:.1f} s", flush=True)
        if run.server.process.poll() is not None:
            print(run.server.errors()[-3000:], file=sys.stderr)
            break
    if run.server.process.poll() is None:
        run.server.stop()
    print(f"{len(chosen) - len(failed)} of {len(chosen)} passed: {os.path.basename(run.model)}, "
          f"checkpoint {args.checkpoint or 'default'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
