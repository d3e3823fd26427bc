#!/usr/bin/env python3
"""Sends hostile bodies to a server of its own on loopback and times /health meanwhile.

    tests/server/hostile.py --binary build/replayssm [--seconds 60] [--per-minute 100]

Prints the answer times of the bodies by kind, the percentiles of /health, and exits 1 if a body
was not answered as it should be, /health failed, or SIGTERM took longer than it may."""

import argparse
import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
MIB = 1 << 20


def repeated(piece, n_bytes, begin="", end=""):
    return (begin + piece * (n_bytes // len(piece)) + end).encode()


def bodies():
    """(kind, path, body, statuses that are right)"""
    keys = lambda n: "{" + ",".join(f'"key{i}":1' for i in range(n)) + "}"
    yield "1 MB of keys", "/v1/completions", keys(80000).encode(), {400}
    yield "16,000 keys", "/v1/completions", keys(16000).encode(), {400}
    yield "objects of 16,000 keys", "/v1/completions", \
        ('{"prompt":[' + ",".join([keys(16000)] * 60) + "]}").encode(), {400}
    yield "32 MB of numbers", "/v1/completions", repeated("1,", 31 * MIB, '{"prompt":[', "1]}"), {400}
    yield "32 MB of brackets", "/v1/completions", repeated("[],", 31 * MIB, "[", "[]]"), {400}
    yield "32 MB of open brackets", "/v1/completions", repeated("[", 31 * MIB), {400}
    yield "32 MB of text", "/v1/completions", repeated("text ", 31 * MIB, '{"prompt":"', '"}'), {400}
    yield "32 MB of escapes", "/v1/completions", \
        repeated("\\u00e9", 31 * MIB, '{"prompt":"', '"}'), {400}
    yield "32 MB of one word", "/tokenize", repeated("x", 31 * MIB, '{"prompt":"', '"}'), {400}
    yield "2 M values", "/v1/completions", repeated("[],", 6 * MIB - 64, '{"x":[', "[]]}"), {400}
    yield "40,000 messages", "/v1/chat/completions", \
        repeated('{"role":"user","content":"a"},', 30 * 40000, '{"messages":[',
                 '{"role":"user","content":"a"}]}'), {400}
    yield "33 MB", "/v1/completions", b" " * (33 * MIB), {413}
    yield "no JSON", "/v1/completions", os.urandom(1 << 16), {400}


class Server:
    def __init__(self, args):
        command = [args.binary, "serve", "-m", os.path.join(ROOT, "models", "demo-gdn"), "--port",
                   "0", "--memory", "0.6", "--max-positions", "4096", "--drain-seconds", "2"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.startswith("serving"):
                self.port = int(line.rsplit(":", 1)[1])
                return
        raise SystemExit("the server does not start")


def send(port, path, body, timeout=60):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def half_sent(port):
    """Clients that stop within a head, and within a body."""
    held = []
    for text in (b"POST /v1/comp", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"):
        for _ in range(20):
            held.append(socket.create_connection(("127.0.0.1", port)))
            held[-1].sendall(text)
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "build", "replayssm"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--per-minute", type=float, default=100)
    args = parser.parse_args()
    server = Server(args)
    kinds = list(bodies())
    held = half_sent(server.port)
    health, wrong, times = [], [], {}
    end = time.monotonic() + args.seconds

    def watch():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        while time.monotonic() < end:
            begin = time.monotonic()
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            health.append(time.monotonic() - begin)
            if response.status != 200:
                wrong.append(f"/health: {response.status}")
            time.sleep(0.01)

    def attack(kind, path, body, right):
        begin = time.monotonic()
        try:
            status = send(server.port, path, body)
        except OSError as error:
            status = f"{error}"
        times.setdefault(kind, []).append(time.monotonic() - begin)
        if status not in right | {503}:
            wrong.append(f"{kind}: {status}")

    threads = [threading.Thread(target=watch)]
    threads[0].start()
    random.seed(1)
    order = []
    while time.monotonic() < end:
        order = order or random.sample(kinds, len(kinds))
        threads.append(threading.Thread(target=attack, args=order.pop()))
        threads[-1].start()
        time.sleep(60 / args.per_minute)
    for thread in threads:
        thread.join()
    # A stop is not held up by what is being read.
    last = threading.Thread(target=attack, args=("at SIGTERM", *kinds[8][1:3], {400, 503}))
    last.start()
    time.sleep(0.05)
    begin = time.monotonic()
    server.process.terminate()
    code = server.process.wait(timeout=60)
    stop = time.monotonic() - begin
    last.join()
    for connection in held:
        connection.close()
    times.pop("at SIGTERM", None)
    wrong = [line for line in wrong if not line.startswith("at SIGTERM")]
    for kind, seconds in times.items():
        print(f"{kind:24} {len(seconds):4} times, at most {max(seconds) * 1e3:8.1f} ms")
    health.sort()
    at = lambda part: health[min(len(health) - 1, int(part * len(health)))] * 1e3
    print(f"/health: {len(health)} times, p50 {at(.5):.2f} ms, p90 {at(.9):.2f} ms, "
          f"p99 {at(.99):.2f} ms, most {health[-1] * 1e3:.2f} ms")
    print(f"SIGTERM: exit {code} after {stop:.2f} s, of --drain-seconds 2 and 5 more")
    for line in wrong:
        print("wrong:", line)
    sys.exit(1 if wrong or stop > 8 else 0)


if __name__ == "__main__":
    main()
