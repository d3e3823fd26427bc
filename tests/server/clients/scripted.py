"""Whole answers from a model that writes nonsense.

A token of the demo model's vocabulary that training never used stands for a whole answer. A
request's fields force it: the answer first, then the end. A proxy adds them to the requests of
clients that cannot, and touches nothing else.
"""
import http.client
import json
import os
import shutil
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

END = 4080  # <|endoftext|>, which no chat's prompt holds
FIRST, LAST = 4089, 4095


def call(name, arguments):
    # Not as templates write it: a token that the history holds would not be said again.
    return "<tool_call> " + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def make_model(base, folder, answers):
    """A model folder like `base` with the answers as tokens; answers: name to text."""
    os.makedirs(folder)
    for name in os.listdir(base):
        if name == "model.safetensors":
            os.symlink(os.path.realpath(os.path.join(base, name)), os.path.join(folder, name))
        else:
            shutil.copy(os.path.join(base, name), folder)
    path = os.path.join(folder, "tokenizer.json")
    with open(path) as file:
        tokenizer = json.load(file)
    ids = dict(zip(answers, range(FIRST, LAST + 1), strict=False))
    assert len(ids) == len(answers), "more answers than spare tokens"
    for token in tokenizer["added_tokens"]:
        for name, number in ids.items():
            if token["id"] == number:
                token.update(content=answers[name], special=False)
    with open(path, "w") as file:
        json.dump(tokenizer, file)
    return ids


def forced(number):
    """Fields that make the answer of this token, once, and end."""
    return {"logit_bias": {str(number): 100, str(END): 60}, "repetition_penalty": 100,
            "temperature": 0}


class ScriptProxy:
    """Forwards to `url`; choose(path, body) names the token of the answer, or None."""

    def __init__(self, url, choose):
        target = urllib.parse.urlsplit(url)
        self.seen = []  # (path, status) of each request
        self.bodies = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def forward(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = urllib.parse.urlsplit(self.path).path
                if body and self.command == "POST":
                    sent = json.loads(body)
                    proxy.bodies.append(sent)
                    number = choose(path, sent)
                    if number is not None:
                        body = json.dumps({**sent, **forced(number)}).encode()
                server = http.client.HTTPConnection(target.hostname, target.port, timeout=120)
                headers = {name: value for name, value in self.headers.items()
                           if name.lower() not in ("host", "content-length", "connection",
                                                   "accept-encoding")}
                server.request(self.command, self.path, body, headers)
                answer = server.getresponse()
                proxy.seen.append((path, answer.status))
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while part := answer.read1(65536):
                    self.wfile.write(part)
                    self.wfile.flush()

            do_GET = do_POST = do_HEAD = do_DELETE = forward

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()

    def failures(self):
        return [one for one in self.seen if one[1] >= 400]
