#!/usr/bin/env python3
"""Says which types are defined in more than one file under one qualified name: the one-definition
rule, without a link. Types in unnamed namespaces and in functions belong to their file.
tools/odr_check.sh, which links with link-time optimisation, compares their members, too."""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "bench")
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+"
                  r"(?:(?:alignas|__align__)\s*\([^)]*\)\s*)?([A-Za-z_]\w*)(?:\s+final)?\s*(?::(?!:)[^;{]*)?$", re.S)
NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)\s*$")


def types_of(text):
    """The qualified names of the types that a source defines where others can see them."""
    text = DIRECTIVE.sub("", NOISE.sub(lambda m: "" if m.group().startswith("/") else '""', text))
    scopes, start = [], 0  # a scope: its name, or None where nothing inside counts
    for mark in re.finditer(r"[{};]", text):
        head = text[start:mark.start()]
        start = mark.end()
        if mark.group() == "}":
            if scopes:
                scopes.pop()
            continue
        if mark.group() == ";":
            continue
        scope = None
        if None not in scopes:
            if namespace := NAMESPACE.search(head):
                scope = namespace.group(1) or None
            elif found := TYPE.search(head):
                scope = found.group(1)
                yield "::".join([*scopes, scope])
        scopes.append(scope)


def repeated(sources):
    """[(name, paths)] of the names that more than one of {path: text} defines."""
    places = collections.defaultdict(set)
    for path, text in sources.items():
        for name in types_of(text):
            places[name].add(path)
    return sorted((name, sorted(paths)) for name, paths in places.items() if len(paths) > 1)


def main():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cpp", ".cu", ".cuh")]
    found = repeated({str(path.relative_to(ROOT)): path.read_text() for path in files})
    for name, paths in found:
        print(f"{name} is defined in {', '.join(paths)}")
    print(f"types: {len(files)} files, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
