#!/usr/bin/env python3
"""Samples of structured output against the jsonschema package.

Draws texts from the grammars of random patterns, random schemas, every format, the schemas that
tools write, and calls of tools with all of these, in the forms of JSON and XML, and validates each.
A text that is not JSON, or not valid, is wrong; a text that the sampler did not finish is not
counted.
Needs: pip install 'jsonschema[format]' pydantic.
"""
import argparse
import json
import random
import re
import signal
import subprocess
import sys

import jsonschema
from jsonschema import Draft202012Validator

import sample_schemas


def random_class(rng):
    if rng.random() < 0.3:
        return rng.choice([r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "."])
    kinds = ["a-c", "x", "0-4", "_", r"\-", r"\d", r"\w", "é", " ", r"\.", "T-Z"]
    items = "".join(rng.choice(kinds) for _ in range(rng.randint(1, 3)))
    return "[" + ("^" if rng.random() < 0.2 else "") + items + "]"


def random_atom(rng, depth):
    roll = rng.random()
    if depth > 0 and roll < 0.4:
        branches = [random_branch(rng, depth - 1) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
        return rng.choice(["(", "(?:"]) + "|".join(branches) + ")"
    if roll < 0.65:
        return random_class(rng)
    return rng.choice(["a", "b", "c", "0", "1", "-", ":", "Z", "é", r"\.", r"\+", "T", "@", "/"])


def random_branch(rng, depth):
    out = ""
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])):
        out += random_atom(rng, depth)
        roll = rng.random()
        if roll < 0.5:
            low = rng.randint(0, 4)
            out += rng.choice(["?", "?", "*", "+", "{%d}" % low, "{%d,}" % low,
                               "{%d,%d}" % (low, low + rng.randint(0, 5)), "??", "+?"])
        elif roll < 0.52:
            low = rng.randint(100, 140)
            out += rng.choice(["{%d}" % low, "{%d,}" % low, "{0,%d}" % low, "{3,%d}" % (low + 20)])
    return out


def random_pattern(rng):
    if rng.random() < 0.1:
        return "|".join("^%s$" % random_branch(rng, 1) for _ in range(2))
    return "^(?:" + random_branch(rng, 3) + ")$" if rng.random() < 0.3 else (
        "^" + random_branch(rng, 3) + "$")


def checked(schema, text):
    """What is wrong with the text, or nothing."""
    try:
        value = json.loads(text)
    except ValueError as e:
        return "not JSON: %s" % e
    try:
        kind = jsonschema.validators.validator_for(schema, default=Draft202012Validator)
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
    except jsonschema.ValidationError as e:
        return e.message[:200]
    pattern = schema.get("pattern") if isinstance(schema, dict) else None
    if pattern is not None and not re.fullmatch(pattern, value):
        return "does not match from end to end"
    return None


class Undecided(Exception):
    """The regular expressions of Python went back and forth for too long."""


def in_time(check, *args, seconds=5):
    def stop(*_):
        raise Undecided

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return check(*args)
    finally:
        signal.alarm(0)


class Sampler:
    def __init__(self, binary, seed):
        self.process = subprocess.Popen([binary, str(seed)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def draw(self, schema, n, style=None):
        line = {"schema": schema, "n": n}
        if style:
            function = {"name": "f", "parameters": schema}
            line = {"tools": [{"type": "function", "function": function}], "style": style, "n": n}
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/tests/sample_grammars")
    parser.add_argument("--kinds", default="formats,patterns,schemas,tools")
    parser.add_argument("--patterns", type=int, default=200, help="random patterns")
    parser.add_argument("--schemas", type=int, default=200, help="random schemas")
    parser.add_argument("--samples", type=int, default=50, help="of each")
    parser.add_argument("--format-samples", type=int, default=10000, help="of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="wrong texts of each schema")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    sampler = Sampler(options.binary, options.seed)
    failed = False
    for kind in options.kinds.split(","):
        n = options.samples
        if kind == "formats":
            schemas = [{"type": "string", "format": f} for f in sample_schemas.FORMATS]
            n = options.format_samples
        elif kind == "patterns":
            schemas = [{"type": "string", "pattern": random_pattern(rng)}
                       for _ in range(options.patterns)]
        elif kind == "schemas":
            schemas = [sample_schemas.random_schema(rng) for _ in range(options.schemas)]
        elif kind == "calls":
            schemas = sample_schemas.of_calls(rng, options.schemas, random_pattern)
        else:
            schemas = sample_schemas.of_tools()
        drawn = wrong = refused = unfinished = undecided = 0
        seconds = slowest = 0.0
        for number, schema in enumerate(schemas):
            style = ("xml", "json", "xml", "list")[number % 4] if kind == "calls" else None
            answer = sampler.draw(schema, n, style)
            if "error" in answer:
                refused += 1
                if kind in ("formats", "tools") or "param" not in answer:
                    failed = True
                    print("refused: %s: %s" % (json.dumps(schema)[:300], answer["error"]))
                elif options.show > 3:
                    print("refused: %s: %s" % (json.dumps(schema), answer["error"]))
                continue
            unfinished += answer["unfinished"]
            seconds += answer["seconds"]
            slowest = max(slowest, answer["compile_seconds"])
            faults = []
            for text in answer["texts"]:
                try:
                    fault = in_time(checked, schema, text)
                    drawn += 1
                except Undecided:
                    undecided += 1
                    if undecided % 10 == 0:
                        break
                    continue
                if fault:
                    faults.append((text, fault))
            wrong += len(faults)
            for text, fault in faults[:options.show]:
                print("wrong: %s\n  %s\n  %s" % (json.dumps(schema, ensure_ascii=False)[:1500],
                                                text[:300], fault))
        failed = failed or wrong > 0 or drawn == 0
        print("%s: %d grammars, %d refused; %d texts, %d wrong, %d not finished, %d that "
              "Python's expressions cannot decide; %.1f s, the slowest grammar made in %.3f s" %
              (kind, len(schemas), refused, drawn, wrong, unfinished, undecided, seconds, slowest),
              flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
