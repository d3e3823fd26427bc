"""Small helpers that the corpus scripts share."""

import hashlib
import json


def hash01(text):
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


def held_out(doc):
    """About one document in a hundred is never trained on, by the tokenizer neither."""
    return hash01("held-out %s %s" % (doc["package"], doc["path"])) < 0.01


def read_docs(path):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def join_blocks(blocks):
    """Blank lines between blocks, a single line feed between list items."""
    parts = []
    for block in blocks:
        if parts:
            both_items = block.startswith("- ") and parts[-1].startswith("- ")
            parts.append("\n" if both_items else "\n\n")
        parts.append(block)
    return "".join(parts)


def doc_text(doc):
    parts = ["# " + doc["title"]] if doc["title"] else []
    for section in doc["sections"]:
        title = section["title"]
        if title and title != doc["title"]:
            parts.append("%s %s" % ("#" * min(4, max(2, section.get("level", 2))), title))
        parts.append(join_blocks(section["blocks"]))
    return "\n\n".join(parts) + "\n"
