#!/usr/bin/env python3
"""Five conversations as agents have them, against a server: how many prompt tokens each request
took from the prefix cache, beside the least that it must, as a Markdown table. Fails if one took
fewer, or if an answer is not what it is with an empty cache.

    tests/server/reuse_table.py --binary build/replayssm
"""

import argparse
import copy
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "blackbox"))
from client import ROOT, Server  # noqa: E402

GRID = 16
CHAT = "/v1/chat/completions"


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class Talk:
    def __init__(self, server, text):
        self.server = server
        self.text = text
        self.rows = []
        self.known = []  # ids of all texts so far, in this conversation

    def piece(self, start, n):
        """A part of a document: what tools and files put into agents' prompts."""
        return self.text[start:start + n]

    def say(self, name, what, messages, **fields):
        body = copy.deepcopy({"messages": messages, "max_tokens": 24, "temperature": 0, **fields})
        prompt = self.server.call("POST", "/tokenize",
                                  {k: v for k, v in body.items() if k in ("messages", "tools")})
        ids = prompt["tokens"]
        got = self.server.ask(body, CHAT)
        # The beginning that it shares with an earlier text, up to the last whole message in it,
        # down to the grid.
        shared = max((common(ids, old) for old in self.known), default=0)
        shared = min(shared, len(ids) - 1)
        ends = [i + 1 for i in range(shared) if ids[i] == self.end]
        floor = max((end // GRID * GRID for end in ends), default=0)
        self.rows.append((name, what, len(ids), shared, floor, got.cached, body, got))
        self.known.append(self.server.state(got)[1])
        return {"role": "assistant", "content": got.choices[0]["message"]["content"]}

    @property
    def end(self):
        return self.server.ids("<|im_end|>")[0]

    def forget(self):
        self.server.forget()
        self.known = []


def append(talk):
    messages = [{"role": "system", "content": talk.piece(0, 1500)}]
    for turn in range(4):
        messages.append({"role": "user", "content": talk.piece(2000 + 700 * turn, 500)})
        messages.append(talk.say("append", f"turn {turn + 1}", messages))


def edit_last(talk):
    messages = [{"role": "system", "content": talk.piece(0, 1500)},
                {"role": "user", "content": talk.piece(2000, 900)}]
    messages.append(talk.say("edit last", "turn 1", messages))
    for i in range(3):
        last = {"role": "user", "content": f"Take {i}: " + talk.piece(4000 + 300 * i, 400)}
        talk.say("edit last", f"turn 2, take {i + 1}", [*messages, last])


def retry(talk):
    messages = [{"role": "system", "content": talk.piece(0, 1500)},
                {"role": "user", "content": talk.piece(2000, 1200)}]
    for i in range(3):
        talk.say("retry", f"try {i + 1}", messages, seed=i, temperature=0.8)


def drop_thinking(talk):
    messages = [{"role": "system", "content": talk.piece(0, 1500)}]
    for turn in range(3):
        messages.append({"role": "user", "content": talk.piece(2000 + 600 * turn, 400)})
        answer = talk.say("drop thinking", f"turn {turn + 1}", messages)
        # What was thought goes with the next turn.
        for message in messages:
            message.pop("reasoning_content", None)
        messages.append({**answer, "reasoning_content": talk.piece(5000 + 900 * turn, 600)})
        messages.append({"role": "tool", "content": talk.piece(8000 + 500 * turn, 300)})
        messages.append(talk.say("drop thinking", f"turn {turn + 1}, after the tool", messages))


def siblings(talk):
    shared = [{"role": "system", "content": talk.piece(0, 3000)},
              {"role": "user", "content": talk.piece(3500, 800)}]
    for i in range(4):
        own = {"role": "user", "content": f"Worker {i}: " + talk.piece(6000 + 800 * i, 700)}
        talk.say("siblings", f"worker {i + 1}", [*shared, own])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "demo-gdn"))
    parser.add_argument("--flags", default="--draft ngram --memory 1 --max-sequences 8")
    args = parser.parse_args()
    server = Server(args.binary, args.model, args.flags.split())
    with open(os.path.join(ROOT, "docs", "contract.md"), encoding="utf-8") as file:
        text = file.read()
    with open(os.path.join(ROOT, "docs", "http.md"), encoding="utf-8") as file:
        text += file.read()
    talk = Talk(server, text)
    for conversation in (append, edit_last, retry, drop_thinking, siblings):
        talk.forget()
        conversation(talk)
    failed = False
    print("| conversation | request | prompt | shared | floor | cached |\n|---|---|---|---|---|---|")
    for name, what, n_prompt, shared, floor, cached, body, got in talk.rows:
        server.forget()
        same = server.ask({**body, "draft": "none"}, CHAT).choices == got.choices
        good = cached >= floor and same
        failed = failed or not good
        mark = "" if good else "  FAILED"
        print(f"| {name} | {what} | {n_prompt} | {shared} | {floor} | {cached} |{mark}")
    total = sum(row[2] for row in talk.rows)
    print(f"\n{sum(row[5] for row in talk.rows)} of {total} prompt tokens from the cache; "
          f"{sum(row[3] for row in talk.rows)} are shared with an earlier text")
    server.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
