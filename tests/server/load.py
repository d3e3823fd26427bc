#!/usr/bin/env python3
"""A load of a server with test hooks: many streams at once, requests without end, clients that
leave. Fails on any error, on anything that is not given back, and on memory that grows.

    tests/server/load.py --binary build/replayssm --seconds 600 --requests 10000 --aborts 1000
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "blackbox"))
from client import ROOT, Server  # noqa: E402


class Load:
    def __init__(self, server, args):
        self.server = server
        self.args = args
        self.rng = random.Random(1)
        self.begun = 0
        self.counts = {"finished": 0, "aborted": 0, "errors": 0}
        self.answers = {}  # one request in a hundred is of these: always the same answer

    def body(self, i):
        if i % 100 == 0:
            return {"prompt": f"Question {i // 100 % 5}:", "max_tokens": 24, "seed": 1,
                    "stream": True}
        prompt = [self.rng.randrange(4000) for _ in range(self.rng.choice([4, 30, 120, 400]))]
        if i % 3 == 0:  # a beginning that many share
            prompt = [i % 7] * 100 + prompt
        return {"prompt": prompt, "max_tokens": self.rng.choice([1, 8, 24, 64]),
                "temperature": self.rng.choice([0, 0.8]), "seed": i, "n": 2 if i % 11 == 0 else 1,
                "draft": self.rng.choice(["none", "ngram", "default"]), "stream": i % 5 != 0}

    async def one(self, i):
        body = self.body(i)
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(data) + data)
        if i % 100 and self.rng.random() < 1.1 * self.args.aborts / self.args.requests:
            await asyncio.sleep(self.rng.random() * 0.2)
            self.counts["aborted"] += 1
            writer.close()
            return
        answer = await reader.read(-1)
        writer.close()
        good = answer.startswith(b"HTTP/1.1 200") and b'{"error"' not in answer and (
            not body["stream"] or b"data: [DONE]" in answer)
        if good and i % 100 == 0:
            text = "".join(json.loads(line[6:])["choices"][0]["text"]
                           for line in answer.split(b"\n")
                           if line.startswith(b"data: {"))
            good = self.answers.setdefault(i // 100 % 5, text) == text
        self.counts["finished" if good else "errors"] += 1
        if not good:
            print(f"request {i}: {body}\n{answer[:600]}", file=sys.stderr)

    def enough(self):
        return (time.monotonic() - self.start >= self.args.seconds
                and self.begun >= self.args.requests)

    async def worker(self):
        while not self.enough():
            self.begun += 1
            await self.one(self.begun - 1)

    async def run(self):
        self.start = time.monotonic()
        sampler = asyncio.create_task(self.sample())
        await asyncio.gather(*[self.worker() for _ in range(self.args.streams)])
        sampler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampler  # raises what it died of

    async def sample(self):
        self.resident = []
        while True:
            await asyncio.sleep(self.args.seconds / 60)
            with open(f"/proc/{self.server.process.pid}/statm", encoding="ascii") as file:
                rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            stats = await asyncio.to_thread(self.server.stats)
            rss -= stats["host_snapshot_bytes"]  # bounded, and filled by the run
            self.resident.append((time.monotonic() - self.start, rss))
            print(f"{self.resident[-1][0]:5.0f} s  {rss / 1e6:.1f} MB resident, running "
                  f"{stats['running']}, queued {stats['queued']}, {self.counts}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "demo-mamba2"))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--aborts", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--flags", default="--draft ngram --memory 0.4 --max-sequences 32")
    args = parser.parse_args()
    server = Server(args.binary, args.model, args.flags.split())
    load = Load(server, args)
    asyncio.run(load.run())
    time.sleep(0.5)
    server.forget()  # checks that all is given back
    stats = server.stats()
    wall = time.monotonic() - load.start
    warm = [rss for at, rss in load.resident if at > args.seconds / 10]
    growth = warm[-1] - warm[0]
    print(f"{wall:.0f} s, {load.counts}; resident {warm[0] / 1e6:.1f} MB after a tenth, "
          f"{warm[-1] / 1e6:.1f} MB at the end, {max(warm) / 1e6:.1f} MB at most; "
          f"engine: {stats['new_tokens']} tokens, {stats['cancelled']} cancelled, "
          f"{stats['preemptions']} preempted, {stats['evicted']} evicted")
    server.stop()
    good = (load.counts["errors"] == 0 and load.counts["aborted"] >= args.aborts
            and growth < 8e6)
    print("ok" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
