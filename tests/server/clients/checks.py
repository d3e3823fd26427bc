"""What the client scripts share."""
import argparse
import json
import sys


class Checks:
    def __init__(self, what):
        self.what = what
        self.n = 0

    def __call__(self, condition, about):
        self.n += 1
        if not condition:
            sys.exit(f"FAILED: {self.what}: {about}")

    def done(self, note=""):
        print(f"{self.what}: {self.n} checks passed{'; ' + note if note else ''}")


def arguments(**more):
    """--url of the server and --answers, the tokens of scripted answers as JSON (scripted.py)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--answers", type=json.loads, default={})
    parser.add_argument("--model-folder", help="of the model that is served")
    parser.add_argument("--binary", help="the client's program, where it is one")
    for name, value in more.items():
        parser.add_argument("--" + name, default=value, type=type(value))
    return parser.parse_args()
