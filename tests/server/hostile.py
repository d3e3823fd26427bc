#!/usr/bin/env python3
"""Sends hostile bodies to a server of its own on loopback and times /health meanwhile.

    tests/server/hostile.py --binary build/replayssm [--seconds 60] [--per-minute 100]

Prints the answer times of the bodies by kind and the percentiles of /health. Exits 1 if a body was
not answered as it should be, /health failed, or SIGTERM took longer than it may. --require: also if
the p99 of /health is above 50 ms, 1 MB of keys takes longer than 50 ms or any body longer than 2 s,
each by the median of its kind; for a machine that does nothing else."""

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
    nested = '{"a":' * (MIB // 5)
    yield "1 MB of nested keys", "/v1/completions", nested.encode(), {400}
    chat = '{"messages":[{"role":"user","content":"a"}],'
    yield "32 MB of a tool", "/v1/chat/completions", \
        repeated("text ", 31 * MIB, chat + '"tools":[{"type":"function","function":{"name":"f",'
                 '"description":"', '"}}]}'), {400}
    yield "2 MB of a schema", "/v1/chat/completions", \
        repeated('"k",', 2 * MIB, chat + '"response_format":{"type":"json_schema",'
                 '"json_schema":{"schema":{"enum":[', '"k"]}}}}'), {400}
    yield "16,000 biases", "/v1/completions", \
        ('{"prompt":"a","logit_bias":' + keys(16000).replace("key", "") + "}").encode(), {400}
    for place in ('"guided_regex":"(((a|b)*c?){1,9}d*){1,9}"',
                  '"guided_regex":"' + "(" * 500 + '"',
                  '"guided_grammar":"root ::= ' + "(a | " * 30 + '"'):
        yield "a costly grammar", "/v1/completions", \
            ('{"prompt":"a","max_tokens":1,' + place + "}").encode(), {200, 400}
    yield "33 MB", "/v1/completions", b" " * (33 * MIB), {413}
    yield "no JSON", "/v1/completions", os.urandom(1 << 16), {400}


def heads():
    """(kind, bytes, status): what is no request, or not for this server."""
    post = "POST /v1/completions HTTP/1.1\r\n"
    host = "Host: localhost\r\n"
    body = '{"prompt":"a","max_tokens":1}'
    length = f"Content-Length: {len(body)}\r\n"
    for head in (host + "Transfer-Encoding: xchunked\r\n", host + host + length, length,
                 host + length + "Transfer-Encoding: chunked\r\n", host + length + length,
                 host + length + " folded: 1\r\n", host + "Content-Length : 1\r\n",
                 host + "Content-Length: +1\r\n", host + "Content-Length: 0x10\r\n"):
        yield "wrong framing", (post + head + "\r\n" + body).encode(), 400
    yield "wrong framing", (post + host + "\r\n").replace("\r", "").encode(), 400
    yield "wrong framing", (post + host + "Transfer-Encoding: chunked\r\n\r\nzz\r\n").encode(), 400
    yield "text behind JSON", (post + host + f"Content-Length: {len(body) + 2}\r\n\r\n" + body +
                               "{}").encode(), 400
    yield "a large head", (post + host + "a: " + "b" * 20000 + "\r\n\r\n").encode(), 431
    yield "another Host", (post + "Host: evil.example\r\n" + length + "\r\n" + body).encode(), 403
    yield "another Origin", (post + host + "Origin: https://evil.example\r\n" + length + "\r\n" +
                             body).encode(), 403
    yield "another type", (post + host + "Content-Type: text/plain\r\n" + length + "\r\n" +
                           body).encode(), 415


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


def send_raw(port, data, timeout=60):
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(data)
        return int(connection.makefile("rb").readline().split()[1])


def send_slowly(port, end):
    """A body that comes byte by byte until `end`, or until the server has had enough."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Length: 33000000\r\n\r\n{")
        try:
            while time.monotonic() < end:
                connection.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            pass


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
    parser.add_argument("--require", action="store_true")
    args = parser.parse_args()
    server = Server(args)
    kinds = [(kind, lambda path=path, body=body: send(server.port, path, body), right)
             for kind, path, body, right in bodies()]
    kinds += [(kind, lambda data=data: send_raw(server.port, data), {right})
              for kind, data, right in heads()]
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

    def attack(kind, sent, right):
        begin = time.monotonic()
        try:
            status = sent()
        except (OSError, http.client.HTTPException, IndexError) as error:
            status = f"{error}"
        times.setdefault(kind, []).append(time.monotonic() - begin)
        if status not in right | {503}:
            wrong.append(f"{kind}: {status}")

    threads = [threading.Thread(target=watch)]
    threads[0].start()
    for _ in range(20):
        threads.append(threading.Thread(target=send_slowly, args=(server.port, end)))
        threads[-1].start()
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
    last = threading.Thread(target=attack, args=("at SIGTERM", kinds[8][1], {400, 503}))
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
    median = {kind: sorted(seconds)[len(seconds) // 2] for kind, seconds in times.items()}
    for kind, seconds in times.items():
        print(f"{kind:24} {len(seconds):4} times, median {median[kind] * 1e3:8.1f} ms, at most "
              f"{max(seconds) * 1e3:8.1f} ms")
    health.sort()
    at = lambda part: health[min(len(health) - 1, int(part * len(health)))] * 1e3
    print(f"/health: {len(health)} times, p50 {at(.5):.2f} ms, p90 {at(.9):.2f} ms, "
          f"p99 {at(.99):.2f} ms, most {health[-1] * 1e3:.2f} ms")
    print(f"SIGTERM: exit {code} after {stop:.2f} s, of --drain-seconds 2 and 5 more")
    if args.require:
        limits = {kind: 0.05 if kind == "1 MB of keys" else 2.0 for kind in times}
        wrong += [f"{kind}: {seconds * 1e3:.0f} ms" for kind, seconds in median.items()
                  if seconds > limits[kind]]
        wrong += [f"/health: p99 {at(.99):.1f} ms"] if at(.99) > 50 else []
    for line in wrong:
        print("wrong:", line)
    sys.exit(1 if wrong or stop > 8 else 0)


if __name__ == "__main__":
    main()
