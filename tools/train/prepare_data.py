#!/usr/bin/env python3
"""Makes the token stream: plain documents plus question-and-answer turns, shuffled.

Writes into --out: train.u16.xz (uint16 token ids), heldout.u16 and heldout.txt (plain documents
only), train.txt (plain text of the training documents, for the order-3 byte model) and
data.json with the counts.
"""

import argparse
import json
import lzma
import pathlib
import random

import jinja2
import numpy as np
from tokenizers import Tokenizer

from common import doc_text, hash01, held_out, join_blocks, read_docs

LABELS = {
    "postgresql-doc-15": "PostgreSQL", "git-doc": "Git", "git-man": "Git",
    "python3.11-doc": "Python", "rust-doc": "Rust", "debian-handbook": "Debian",
    "perl-doc": "Perl", "debian-policy": "Debian policy", "developers-reference": "Debian",
    "linux-doc-6.1": "the Linux kernel", "sqlite3-doc": "SQLite", "cmake-doc": "CMake",
    "octave-doc": "Octave", "postgis-doc": "PostGIS", "python-django-doc": "Django",
    "python-pandas-doc": "pandas", "python-scipy-doc": "SciPy",
    "python-sqlalchemy-doc": "SQLAlchemy", "apache2-doc": "the Apache HTTP Server",
    "nodejs-doc": "Node.js", "erlang-doc": "Erlang", "sphinx-doc": "Sphinx",
    "docutils-doc": "Docutils", "debmake-doc": "Debian packaging",
    "debian-reference-en": "Debian", "debian-faq": "Debian", "libssl-doc": "OpenSSL",
    "krb5-doc": "Kerberos", "postfix-doc": "Postfix", "exim4-doc-html": "Exim",
    "installation-guide-amd64": "the Debian installer", "llvm-14-doc": "LLVM",
    "clang-14-doc": "Clang", "systemd": "systemd", "buildbot-doc": "Buildbot",
    "freebsd-manpages": "FreeBSD", "manpages": "Linux", "manpages-dev": "Linux",
    "python-tornado-doc": "Tornado", "python-werkzeug-doc": "Werkzeug",
    "python-jinja2-doc": "Jinja", "libboost1.74-doc": "Boost", "python-sympy-doc": "SymPy",
    "tcl8.6-doc": "Tcl", "live-manual-html": "Debian Live",
    "libreoffice-help-en-us": "LibreOffice", "zsh-doc": "Zsh", "hledger": "hledger",
}
SYSTEMS = [
    "You are a helpful assistant who knows technical documentation.",
    "Answer the question from the manual. Be brief and exact.",
    "You help people with software documentation.",
    "You are a careful technical writer.",
]
GENERAL = [
    "What is {s}?", "Explain {s}.", "Tell me about {s}.", "{s}?", "In {p}, what is {s}?",
    "What should I know about {s} in {p}?", "How does {s} work?", "Describe {s} in {p}.",
    "Can you explain {s}?", "I have a question about {p}: {s}.",
]
PART = {
    "description": ["What does {d} do?", "What is {d}?", "Describe {d}.", "Explain {d}."],
    "name": ["What is {d}?", "What does {d} stand for?"],
    "synopsis": ["How is {d} called?", "Show the synopsis of {d}."],
    "examples": ["Show an example of {d}.", "Give examples for {d}."],
    "example": ["Show an example of {d}.", "How do I use {d}?"],
    "options": ["Which options does {d} take?", "List the options of {d}."],
    "parameters": ["What are the parameters of {d}?", "Which parameters does {d} take?"],
    "return value": ["What does {d} return?", "What is the return value of {d}?"],
    "return values": ["What does {d} return?", "What is the return value of {d}?"],
    "errors": ["Which errors can {d} give?", "How does {d} fail?"],
    "notes": ["Are there notes on {d}?", "What else should I know about {d}?"],
    "bugs": ["Does {d} have known bugs?"],
    "files": ["Which files does {d} use?"],
    "environment": ["Which environment variables does {d} read?"],
    "introduction": ["What is {d} about?", "Introduce {d}."],
    "overview": ["Give an overview of {d}.", "What is {d}?"],
    "compatibility": ["How compatible is {d}?"],
    "history": ["What is the history of {d}?"],
    "usage": ["How do I use {d}?"],
}
SKIP_TITLES = {"see also", "authors", "author", "copyright", "references", "colophon", "standards",
               "attributes", "versions", "conforming to", "reporting bugs", "changes"}
THOUGHTS = [
    "The question is about {s} in {p}. I give the main point first and then the details.",
    "They want to know about {s}. This belongs to {p}, so I answer from its documentation.",
    "I should explain {s} in the terms of {p}.",
]
TOOL = {"type": "function", "function": {
    "name": "search_docs", "description": "Looks a topic up in the documentation.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}},
                   "required": ["query"]}}}


def question(rng, doc, section):
    title, label = section["title"], LABELS[doc["package"]]
    low = title.lower()
    if low in SKIP_TITLES or len(title) > 90:
        return None
    if low in PART or not title:
        if not 2 < len(doc["title"]) <= 80:
            return None
        return rng.choice(PART[low or "description"]).format(d=doc["title"])
    if len(title) < 3:
        return None
    if low.startswith("how to "):
        return "How do I " + title[7:].rstrip(".?") + "?"
    first = title.split()[0]
    if title.endswith("?"):
        return title
    if first.endswith("ing") and first[0].isupper() and " " in title:
        return rng.choice(["How about {s}?", "What is involved in {s}?", "Tell me about {s}."]
                          ).format(s=first.lower() + title[len(first):])
    return rng.choice(GENERAL).format(s=title, p=label)


def answer(section, limit):
    blocks = section["blocks"]
    if len(blocks[0]) < 60 or blocks[0].startswith(("- ", "```")) or "\n" in blocks[0]:
        return None
    kept, size = [], 0
    for block in blocks:
        if size + len(block) > limit and kept:
            break
        kept.append(block)
        size += len(block)
    while kept and (kept[-1].endswith(":") or len(kept[-1]) < 25):
        kept.pop()
    text = join_blocks(kept)
    return text if 60 <= len(text) <= 1.5 * limit else None


def chats(doc, share, render):
    """Yields conversations made from the sections of one document."""
    rng = random.Random(doc["package"] + doc["path"])
    sections = doc["sections"]
    i = 0
    while i < len(sections):
        section = sections[i]
        i += 1
        if rng.random() >= share:
            continue
        ask = question(rng, doc, section)
        reply = answer(section, rng.choice([300, 500, 700, 900, 1200]))
        if not ask or not reply:
            continue
        topic = section["title"] or doc["title"]
        messages, tools = [], None
        if rng.random() < 0.4:
            messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
        messages.append({"role": "user", "content": ask})
        kind = rng.random()
        if kind < 0.10:
            tools = [TOOL]
            call = {"name": "search_docs", "arguments": {"query": topic}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "content": reply})
            reply = reply.split("\n\n")[0]
            messages.append({"role": "assistant", "content": reply})
        else:
            turn = {"role": "assistant", "content": reply}
            if kind < 0.25:
                turn["reasoning_content"] = rng.choice(THOUGHTS).format(
                    s=topic, p=LABELS[doc["package"]])
            messages.append(turn)
        while rng.random() < 0.4 and i < len(sections):
            ask, reply = question(rng, doc, sections[i]), answer(sections[i], 600)
            i += 1
            if ask and reply:
                messages += [{"role": "user", "content": ask},
                             {"role": "assistant", "content": reply}]
        yield render(messages=messages, tools=tools)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--docs", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--chat-share", type=float, default=0.5, help="share of sections also asked")
    args = ap.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    tok = Tokenizer.from_file(args.tokenizer)
    eot = tok.token_to_id("<|endoftext|>")
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = pathlib.Path(__file__).with_name("chat_template.jinja").read_text("utf-8")
    render = env.from_string(template).render

    plain, turns, kept_back = [], [], []
    for doc in read_docs(args.docs):
        if held_out(doc):
            kept_back.append(doc_text(doc))
            continue
        plain.append(doc_text(doc))
        turns.extend(chats(doc, args.chat_share, render))

    def encode(texts):
        pieces = []
        for i in range(0, len(texts), 512):
            for item in tok.encode_batch_fast(texts[i:i + 512], add_special_tokens=False):
                pieces.append(np.array(item.ids + [eot], dtype=np.uint16))
        return pieces

    plain_ids, turn_ids, held_ids = encode(plain), encode(turns), encode(kept_back)
    order = list(range(len(plain_ids) + len(turn_ids)))
    order.sort(key=lambda i: hash01("order %d" % i))
    both = plain_ids + turn_ids
    train = np.concatenate([both[i] for i in order])
    held = np.concatenate(held_ids)
    with lzma.open(out / "train.u16.xz", "wb", preset=3) as f:
        f.write(train.tobytes())
    held.tofile(out / "heldout.u16")
    (out / "heldout.txt").write_text("\n".join(kept_back), "utf-8")
    (out / "train.txt").write_text("\n".join(plain), "utf-8")
    (out / "chat_sample.txt").write_text("\n=====\n".join(turns[:: max(1, len(turns) // 40)]))
    plain_bytes = sum(len(t.encode()) for t in plain)
    plain_tokens = sum(map(len, plain_ids))
    data = {
        "documents": len(plain), "plain_bytes": plain_bytes, "plain_tokens": plain_tokens,
        "conversations": len(turns), "chat_tokens": int(sum(map(len, turn_ids))),
        "train_tokens": int(train.size), "heldout_documents": len(kept_back),
        "heldout_bytes": (out / "heldout.txt").stat().st_size, "heldout_tokens": int(held.size),
        "bytes_per_token": plain_bytes / plain_tokens,
    }
    (out / "data.json").write_text(json.dumps(data, indent=2) + "\n")
    print(json.dumps(data, indent=2))


if __name__ == "__main__":
    main()
