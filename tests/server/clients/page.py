#!/usr/bin/env python3
"""The page at / in headless Chromium: page.py http://127.0.0.1:8000

Not part of `make test`: needs Debian's `chromium`. Start the server with --draft ngram
--fixed-drafts, so that some drafts stand.
"""
import json
import os
import subprocess
import sys
import tempfile
import time


class Browser:
    """Chrome's DevTools protocol over a pair of pipes; messages end in a zero byte."""

    def __init__(self, profile):
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()
        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
                   "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        shell = f"exec {' '.join(command)} 3<&{to_read} 4>&{from_write}"
        self.process = subprocess.Popen(["bash", "-c", shell], pass_fds=(to_read, from_write),
                                        stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.rest = b""
        self.last_id = 0
        self.requests = []
        self.errors = []
        self.session = None

    def receive(self):
        while b"\0" not in self.rest:
            part = os.read(self.from_read, 1 << 16)
            if not part:
                sys.exit("FAILED: Chromium ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(message)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(message["params"]["exceptionDetails"]["text"])
        return message

    def call(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    sys.exit(f"FAILED: {method}: {answer['error']}")
                return answer["result"]

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"FAILED: {expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression, what, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.1)
        sys.exit(f"FAILED: {what}; the page says: {self.evaluate('document.body.innerText')}")


def main():
    url = sys.argv[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.call("Target.attachToTarget", targetId=target,
                                           flatten=True)["sessionId"]
            browser.call("Network.enable")
            browser.call("Runtime.enable")
            browser.call("Page.enable")
            browser.call("Page.navigate", url=url + "/")
            browser.wait("document.querySelectorAll('#memory .bar').length > 3", "memory is shown")
            browser.wait("document.querySelectorAll('#slots i').length > 0", "slots are shown")
            for turn in (1, 2):
                browser.evaluate("""document.getElementById('temperature').value = 0;
                    document.getElementById('text').value = 'What is a package?';
                    document.getElementById('form').requestSubmit()""")
                browser.wait(f"document.querySelectorAll('.assistant').length === {turn} && !running",
                             "an answer comes to its end")
            text = browser.evaluate("document.querySelector('.assistant').innerText")
            drafts = browser.evaluate("document.querySelectorAll('.draft').length") - 1
            speed = float(browser.evaluate("document.getElementById('speed').textContent"))
            cached = browser.evaluate("document.getElementById('cached').textContent")
            saved = browser.evaluate("document.getElementById('saved').textContent")
            outside = [r for r in browser.requests if not r.startswith(url + "/")
                       and not r.startswith("about:") and not r.startswith("data:")]
            for good, what in ((len(text) > 20, "an answer has text"), (drafts > 0, "tinted drafts"),
                               (speed > 0, "a speed"), (not outside, f"no requests to {outside}"),
                               (not browser.errors, f"no errors: {browser.errors}"),
                               (int(cached.split(", ")[1]) > 0, "the second turn is cached"),
                               ("(" in saved, "state bytes saved")):
                if not good:
                    sys.exit(f"FAILED: {what}")
            print(f"page: passed; {speed} tokens/s, {drafts} tinted runs, prompt and cached {cached}, "
                  f"state bytes saved {saved}")
        finally:
            browser.process.terminate()
            browser.process.wait()


if __name__ == "__main__":
    main()
