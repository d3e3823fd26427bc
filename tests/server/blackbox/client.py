"""A server process and clients of it. Python's standard library alone."""

import concurrent.futures
import dataclasses
import http.client
import itertools
import json
import os
import re
import socket
import subprocess
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
N_CLIENTS = 8  # at once

_numbers = itertools.count(1)


class HttpError(Exception):
    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


@dataclasses.dataclass
class Answer:
    choices: list  # text, logprobs, why it ended: what is compared
    usage: dict
    report: dict  # the field "replayssm"
    id: str  # the x-request-id

    @property
    def cached(self):
        return self.usage["prompt_tokens_details"]["cached_tokens"]

    @property
    def accepted(self):
        return self.usage["completion_tokens_details"]["accepted_prediction_tokens"]

    @property
    def text(self):
        return self.choices[0]["text"]


class Stream:
    """Reads server-sent events from a socket of its own."""

    def __init__(self, port, path, body, request_id):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        data = json.dumps(body).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nx-request-id: {request_id}\r\n"
                f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n")
        self.id = request_id
        self.socket.sendall(head.encode() + data)
        self.file = self.socket.makefile("rb")

    def head(self):
        status = int(self.file.readline().split()[1])
        while self.file.readline().strip():
            pass
        return status

    def events(self):
        """Each event as JSON, until [DONE]."""
        status = self.head()
        if status != 200:
            raise HttpError(status, self.file.read().decode())
        rest = b""
        while True:
            size = int(self.file.readline(), 16)
            rest += self.file.read(size)
            self.file.readline()
            *whole, rest = rest.split(b"\n\n")
            for event in whole:
                if event.startswith(b":"):  # a comment that keeps the connection
                    continue
                assert event.startswith(b"data: "), event
                if event == b"data: [DONE]":
                    assert not rest, rest
                    return
                yield json.loads(event[6:].decode("utf-8", "strict"))
            assert size > 0, "the stream ends without [DONE]"

    def close(self):
        self.file.close()
        self.socket.close()


class Server:
    """`replayssm serve` on a free port, with the test hooks."""

    def __init__(self, binary, model, flags=()):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [binary, "serve", "-m", model, "--port", "0", "--test-hooks", *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.port = 0
        for line in self.process.stdout:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        if not self.port:
            self.process.wait()
            raise RuntimeError("the server does not start: " + self.errors())
        self.all_stats = self.stats()

    def errors(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        """SIGTERM; it must end well."""
        self.process.terminate()
        code = self.process.wait(120)
        self.process.stdout.close()
        assert code == 0, (code, self.errors()[-2000:])

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    # ---- requests

    def call(self, method, path, body=None, request_id=None):
        return self.answer(method, path, body, request_id)[0]

    def answer(self, method, path, body=None, request_id=None):
        """The answer's JSON and its headers; another status than 200 is raised."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Connection": "close"}
        if request_id:
            headers["x-request-id"] = request_id
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "strict")
        connection.close()
        if response.status != 200:
            raise HttpError(response.status, text)
        return json.loads(text), response.headers

    def refusal(self, method, path, body):
        """The error that a request gets."""
        try:
            got = self.call(method, path, body)
        except HttpError as error:
            return error.status, json.loads(error.body)["error"]
        raise AssertionError(f"{path} was not refused: {got}")

    def ask(self, body, path="/v1/completions"):
        request_id = f"bb-{next(_numbers)}"
        got = self.call("POST", path, body, request_id)
        return Answer(got["choices"], got["usage"], got["replayssm"], request_id)

    def cold(self, body, **fields):
        """The answer with nothing known and nothing drafted."""
        self.forget()
        got = self.ask({**body, **fields, "draft": "none", "scripted_drafts": None})
        assert got.cached == 0, got
        return got

    def stream(self, body, path="/v1/completions"):
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        return self.send(body, path)

    def send(self, body, path="/v1/completions"):
        """A request whose answer is not waited for."""
        return Stream(self.port, path, body, f"bb-{next(_numbers)}")

    def at_once(self, bodies):
        """The answers to requests that are sent by as many clients."""
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(self.ask, bodies))

    def ids(self, text):
        return self.call("POST", "/tokenize", {"prompt": text})["tokens"]

    # ---- hooks and counters

    def state(self, answer):
        """Hash of the state, and ids of prompt and answer."""
        got = self.call("POST", "/test/state", {"request": answer.id})
        return got["hash"], got["tokens"]

    def preempt(self, request_id):
        return self.call("POST", "/test/preempt", {"request": request_id})

    def stats(self):
        return self.call("GET", "/stats")

    def quiet(self):
        """Waits until nothing runs; then all is free but what the cache holds."""
        for _ in range(3000):
            s = self.stats()
            if s["running"] == s["queued"] == 0 and s["rings_free"] == s["rings"]:
                break
            time.sleep(0.01)
        assert s["running"] == s["queued"] == 0, s
        assert s["rings_free"] == s["rings"], s
        assert s["slots_free"] + s["snapshots"] == s["slots"], s
        assert s["pages_free"] + s["snapshot_pages"] == s["pages"], s
        return s

    def forget(self):
        """Empties the cache: every counter is back at its start."""
        self.quiet()
        self.call("POST", "/test/drop_cache", {})
        s = self.stats()
        for name in ("slots", "rings", "pages"):
            assert s[name] == s[name + "_free"] == self.all_stats[name + "_free"], s
        assert s["snapshot_bytes"] == 0 and s["memory"] == self.all_stats["memory"], s


def gather(stream):
    """A stream's events as the answer without streaming has them, but for its lists of logprobs."""
    choices, usage, report = {}, None, None
    for event in stream.events():
        assert "error" not in event, event
        for part in event["choices"]:
            whole = choices.setdefault(part["index"], {"text": "", "tokens": []})
            delta = part.get("delta")
            whole["text"] += part["text"] if delta is None else delta.get("content") or ""
            if part["logprobs"]:
                whole["tokens"] += part["logprobs"].get("token_logprobs") or []
            if part["finish_reason"]:
                assert "finish" not in whole, event
                whole["finish"] = part["finish_reason"]
                whole["prompt"] = part.get("prompt_logprobs")
        usage, report = event.get("usage", usage), event.get("replayssm", report)
    return [choices[i] for i in sorted(choices)], usage, report
