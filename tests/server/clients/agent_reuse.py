#!/usr/bin/env python3
"""An agent's run through each of the three chat APIs: how much of what it sends again is cached.

Each step sends all that was said before: a tool's result is appended (or the user asks for
something else), now and then the last message is edited, or a step is sent again. What a prompt
shares in tokens (by /tokenize) with the prompt before it and the answer to that could be reused;
the usage says what was.
"""
import json
import random
import urllib.request

from checks import Checks, arguments

STEPS = 50
APIS = ("chat", "responses", "messages")
TOOLS = [("read_file", "Reads a file", {"path": {"type": "string"}}),
         ("edit_file", "Replaces text in a file", {"path": {"type": "string"},
                                                   "old": {"type": "string"},
                                                   "new": {"type": "string"}}),
         ("run", "Runs a command", {"command": {"type": "string"}})]
SYSTEM = ("You are a careful programmer. You read before you write, you run the tests after each "
          "change and you report what you see. ") * 12
WORDS = ("the function returns an error when its argument is empty so that line must check length "
         "first and the test for it fails with status 1 in module parser at offset 42").split()


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


class Agent:
    """The conversation in a neutral form: ("user", text), ("call", id, name, arguments, text) and
    ("result", id, text); each API has its own way to write it."""

    def __init__(self, url, seed, tokens):
        self.url, self.rng, self.tokens = url, random.Random(seed), tokens
        self.turns = [("user", text(self.rng, 60))]
        self.n = 0

    def chat_body(self, turns):
        messages = [{"role": "system", "content": SYSTEM}]
        for turn in turns:
            if turn[0] == "user":
                messages.append({"role": "user", "content": turn[1]})
            elif turn[0] == "call":
                messages.append({"role": "assistant", "content": turn[4], "tool_calls": [
                    {"id": turn[1], "type": "function",
                     "function": {"name": turn[2], "arguments": json.dumps(turn[3])}}]})
            elif turn[0] == "said":
                messages.append({"role": "assistant", "content": turn[1]})
            else:
                messages.append({"role": "tool", "tool_call_id": turn[1], "content": turn[2]})
        return {"messages": messages, "tools": [
            {"type": "function", "function": {
                "name": name, "description": what, "parameters": {
                    "type": "object", "properties": fields, "required": list(fields)}}}
            for name, what, fields in TOOLS]}

    def responses_body(self, turns):
        items = []
        for turn in turns:
            if turn[0] == "user":
                items.append({"role": "user", "content": turn[1]})
            elif turn[0] == "said":
                items.append({"role": "assistant", "content": turn[1]})
            elif turn[0] == "call":
                items.append({"role": "assistant", "content": turn[4]})
                items.append({"type": "function_call", "call_id": turn[1], "name": turn[2],
                              "arguments": json.dumps(turn[3])})
            else:
                items.append({"type": "function_call_output", "call_id": turn[1],
                              "output": turn[2]})
        return {"input": items, "instructions": SYSTEM, "tools": [
            {"type": "function", "name": name, "description": what, "parameters": {
                "type": "object", "properties": fields, "required": list(fields)}}
            for name, what, fields in TOOLS]}

    def messages_body(self, turns):
        messages = []
        for turn in turns:
            if turn[0] == "user":
                block = {"type": "text", "text": turn[1]}
            elif turn[0] == "result":
                block = {"type": "tool_result", "tool_use_id": turn[1], "content": turn[2]}
            elif turn[0] == "said":
                messages.append({"role": "assistant", "content": [
                    {"type": "text", "text": turn[1]}]})
                continue
            else:
                messages.append({"role": "assistant", "content": [
                    {"type": "text", "text": turn[4]},
                    {"type": "tool_use", "id": turn[1], "name": turn[2], "input": turn[3]}]})
                continue
            messages.append({"role": "user", "content": [block]})
        return {"messages": messages, "system": SYSTEM, "tools": [
            {"name": name, "description": what, "input_schema": {
                "type": "object", "properties": fields, "required": list(fields)}}
            for name, what, fields in TOOLS]}

    def ask(self, api):
        """Sends the conversation; returns the answer's text and the tokens that were cached."""
        more = {"temperature": 0, "seed": self.n}
        if api == "chat":
            answer = post(self.url, "/v1/chat/completions",
                          {**self.chat_body(self.turns), **more, "max_tokens": self.tokens})
            return (answer["choices"][0]["message"]["content"] or "",
                    answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        if api == "responses":
            answer = post(self.url, "/v1/responses", {**self.responses_body(self.turns), **more,
                                                      "max_output_tokens": self.tokens})
            said = [item["content"][0]["text"] for item in answer["output"]
                    if item["type"] == "message"]
            return "".join(said), answer["usage"]["input_tokens_details"]["cached_tokens"]
        answer = post(self.url, "/v1/messages",
                      {**self.messages_body(self.turns), **more, "max_tokens": self.tokens})
        said = [block["text"] for block in answer["content"] if block["type"] == "text"]
        return "".join(said), answer["usage"]["cache_read_input_tokens"]

    def prompt(self, *answer):
        body = self.chat_body([*self.turns, *answer])
        return post(self.url, "/tokenize", {**body, "add_generation_prompt": not answer})["tokens"]

    def go_on(self, said):
        """What the client appends, or changes, before it asks again."""
        self.n += 1
        kind = self.rng.random()
        if kind < 0.1 and self.turns[-1][0] == "user":
            self.turns[-1] = ("user", self.turns[-1][1] + " " + text(self.rng, 8))  # an edit
        elif kind < 0.2:
            pass  # the same again
        elif kind < 0.3:
            self.turns += [("said", said), ("user", text(self.rng, 25))]
        else:
            name, _, fields = self.rng.choice(TOOLS)
            number = f"call_{self.n}"
            self.turns += [("call", number, name, {f: text(self.rng, 3) for f in fields}, said),
                           ("result", number, text(self.rng, self.rng.choice([10, 60, 200])))]


def run_agent(url, api, seed, steps, tokens):
    """Prompt tokens in all, those that could be reused, and those that were."""
    agent = Agent(url, seed, tokens)
    known, sent, shared, cached = [], 0, 0, 0
    for _ in range(steps):
        prompt = agent.prompt()
        said, n_cached = agent.ask(api)
        same = next((i for i, (a, b) in enumerate(zip(known, prompt)) if a != b),
                    min(len(known), len(prompt)))
        sent += len(prompt)
        shared += same
        cached += min(n_cached, same)  # not what others left
        known = agent.prompt(("said", said))
        agent.go_on(said)
    return sent, shared, cached


def main():
    args = arguments(tokens=24, steps=STEPS)
    check = Checks("agent runs")
    for seed, api in enumerate(APIS):
        sent, shared, cached = run_agent(args.url, api, seed, args.steps, args.tokens)
        print(f"{api:10} {args.steps} steps, {sent} prompt tokens; shared with the step before "
              f"{shared}, of these cached {cached}: {100 * cached / shared:.2f} %")
        check(cached >= 0.99 * shared, f"{api}: 99 % of the shared tokens are cached")
    check.done()


if __name__ == "__main__":
    main()
