#!/usr/bin/python3
"""What the Python library makes of each template and context, as one JSON object on stdout.

    jinja_oracle.py CONTEXTS.json TEMPLATE...

{"TEMPLATE": {"CONTEXT": "text" or null for an error}}, with the environment of Hugging Face's
apply_chat_template.
"""
import json
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %} marks text for training and renders as it is."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    with open(sys.argv[1], encoding="utf-8") as file:
        contexts = json.load(file)
    results = {}
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        results[path] = {}
        for name, context in contexts.items():
            try:
                results[path][name] = environment.from_string(source).render(**context)
            except Exception:  # whatever it is, the template cannot be rendered
                results[path][name] = None
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
