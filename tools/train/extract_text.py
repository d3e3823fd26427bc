#!/usr/bin/env python3
"""Turns the unpacked documentation packages into clean text with section titles.

Output: one JSON object a line, {"package", "path", "title", "sections": [{"title", "blocks"}]},
where blocks are paragraphs, list items and fenced code. Paragraphs that were seen before
anywhere in the corpus are dropped, so page furniture and copied pages disappear.
"""

import argparse
import gzip
import hashlib
import json
import pathlib
import re
import subprocess
import unicodedata
from concurrent.futures import ProcessPoolExecutor

import lxml.html

SKIP_TAGS = {
    "script", "style", "nav", "footer", "form", "button", "svg", "img", "select", "iframe",
    "head", "noscript", "input", "object", "link", "meta", "colgroup", "template",
}
SKIP_CLASS = re.compile(
    r"(?:^|\s)(?:nav|navbar|navheader|navfooter|navigation|sidebar|sphinxsidebar|footer|toc|"
    r"breadcrumbs?|related|headerlink|copyright|banner|search|menu|clearer|pagination|"
    r"prevnext|prev-next-area|bd-sidebar|toctree-wrapper|contents|topic-contents|head-foot|"
    r"permalink|anchor|spirit-nav|copyright-footer|nav-wrapper|nav-chapters|menu-bar|toc_box|"
    r"nosearch|fancy_toc|fancytoc|column2|column1|up|path|langs|head|foot|foot-vol)"
    r"(?:\s|$)"
)
SKIP_ID = re.compile(r"^(?:toc|column\d|sidebar|nav|footer|header|search|menu|preamble-nav|"
                     r"quickview|path|navcolumn|leftnav|page-header|top-nav)$", re.I)
HEADINGS = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
BLOCK_TAGS = {
    "p", "div", "section", "article", "main", "body", "html", "ul", "ol", "dl", "dt", "dd", "li",
    "table", "tbody", "thead", "tr", "td", "th", "pre", "blockquote", "center", "figure",
    "figcaption", "aside", "header", "details", "summary", "hr", "address", "tfoot", "caption",
} | set(HEADINGS)
SPACE = re.compile(r"\s+")
REPLACE = str.maketrans({
    "\u00a0": " ", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00b6": None,
    "\u200b": None, "\ufeff": None, "\u00ad": None, "\u2010": "-", "\u2011": "-", "\u2012": "-",
    "\u2013": "-", "\uf0c1": None, "\u2212": "-", "\u25be": None, "\u00a7": None, "\u2028": " ",
})
NUMBERING = re.compile(r"^(?:(?:chapter|appendix|part|section)\s+)?(?:[A-Z]\.|\d+\.)?(?:\d+\.)*"
                       r"\d*\.?\s+", re.I)


def tidy(text):
    return SPACE.sub(" ", text.translate(REPLACE)).strip()


def clean_title(text):
    text = tidy(text)
    short = NUMBERING.sub("", text, count=1)
    return (short or text).strip(" :#")


class Walker:
    """Collects (kind, text) items from an HTML tree: heading, para, item, code."""

    def __init__(self):
        self.items = []
        self.inline = []

    def flush(self, kind="para"):
        text = tidy("".join(self.inline))
        self.inline = []
        if text:
            self.items.append((kind, text))

    def skip(self, el):
        if not isinstance(el.tag, str) or el.tag in SKIP_TAGS:
            return True
        cls = el.get("class")
        if cls and SKIP_CLASS.search(cls):
            return True
        ident = el.get("id")
        return bool(ident and SKIP_ID.match(ident)) or el.get("role") in ("navigation", "search")

    def walk(self, el, kind="para"):
        tag = el.tag
        if tag in HEADINGS:
            self.flush()
            self.items.append(("h%d" % HEADINGS[tag], clean_title(self.text_of(el))))
            return
        if tag == "pre":
            self.flush()
            text = self.text_of(el).translate(REPLACE).expandtabs(8).strip("\n").rstrip()
            if text.strip():
                self.items.append(("code", text))
            return
        if tag == "table" and self.simple_table(el):
            return
        if tag == "br":
            self.inline.append(" ")
            return
        block = tag in BLOCK_TAGS
        if block:
            self.flush(kind)
            kind = "item" if tag == "li" else ("term" if tag == "dt" else kind)
            if tag == "dd":
                kind = "para"
        if el.text:
            self.inline.append(el.text)
        for child in el:
            if not self.skip(child):
                self.walk(child, kind)
            if child.tail:
                self.inline.append(child.tail)
        if block:
            self.flush(kind)

    def text_of(self, el):
        parts = [el.text or ""]
        for child in el:
            if not self.skip(child):
                parts.append("\n" if child.tag == "br" else self.text_of(child))
            parts.append(child.tail or "")
        return "".join(parts)

    def simple_table(self, el):
        rows = []
        for row in el.iter("tr"):
            cells = [c for c in row if c.tag in ("td", "th")]
            for cell in cells:
                if any(d.tag in ("pre", "ul", "ol", "dl", "table", "h1", "h2", "h3")
                       for d in cell.iter() if d is not cell):
                    return False
            texts = [tidy(self.text_of(c)) for c in cells]
            if texts and max(map(len, texts)) > 600:
                return False
            texts = [t for t in texts if t]
            if texts:
                rows.append(" | ".join(texts))
        self.flush()
        if rows:
            self.items.append(("table", "\n".join(rows[:60])))
        return True


MAIN_XPATH = (
    "//*[@role='main']", "//main", "//*[@id='bodycontent' or @id='DisplayArea']",
    "//*[@id='page-content']", "//*[@id='apicontent']",
    "//article", "//div[contains(concat(' ',@class,' '),' body ')]",
)


def html_items(data):
    try:
        root = lxml.html.document_fromstring(data)
    except (lxml.etree.ParserError, ValueError):
        return []
    body = None
    for path in MAIN_XPATH:
        found = root.xpath(path)
        if found:
            body = found[0]
            break
    if body is None:
        found = root.xpath("//body")
        body = found[0] if found else root
    walker = Walker()
    walker.walk(body)
    walker.flush()
    title = root.findtext(".//title") or ""
    return [("doc", clean_title(title))] + walker.items


def man_html(path):
    run = subprocess.run(["mandoc", "-Thtml", "-Ofragment", str(path)], capture_output=True,
                         timeout=30)
    page = re.sub(rb'<table class="(?:head|foot)">.*?</table>', b"", run.stdout, flags=re.S)
    name = re.sub(r"\.gz$", "", path.name)
    stem, _, sec = name.rpartition(".")
    title = "%s(%s)" % (stem, re.sub(r"(freebsd|ssl|tcl8\.6|posix)$", "", sec))
    return b"<html><head><title>" + title.encode() + b"</title></head><body>" + page + b"</body>"


POD_SCRIPT = (
    "my $p = Pod::Simple::XHTML->new; $p->html_header(''); $p->html_footer('');"
    "$p->output_string(\\my $o); $p->parse_file($ARGV[0]); binmode STDOUT, ':utf8'; print $o;"
)


def pod_html(path):
    run = subprocess.run(["perl", "-MPod::Simple::XHTML", "-e", POD_SCRIPT, str(path)],
                         capture_output=True, timeout=60)
    return (b"<html><head><meta charset='utf-8'><title>" + path.stem.encode()
            + b"</title></head><body>" + run.stdout + b"</body></html>")


FURNITURE = {"prev", "next", "up", "home", "top", "contents", "index", "download the ebook",
             "previous", "note", "warning", "tip", "important", "caution", "see also", "[source]",
             "go back", "previous page", "next page", "see also:", "table of contents"}


def good(text, kind):
    if text.strip(" -").lower() in FURNITURE:
        return False
    if kind == "code":
        return len(text) <= 3000
    letters = sum(c.isalpha() for c in text)
    foreign = sum(ord(c) > 0x24F for c in text)
    return foreign <= 0.05 * len(text) and (len(text) < 60 or letters >= 0.5 * len(text))


def make_doc(package, path, items):
    title, sections = "", []
    current = {"title": "", "blocks": []}
    for kind, text in items:
        if kind == "doc":
            title = text
        elif kind[0] == "h" and kind[1:].isdigit():
            if not title:
                title = text
            if current["blocks"]:
                sections.append(current)
            if text.isupper() and len(text) > 4:
                text = text.capitalize()
            current = {"title": text, "level": int(kind[1:]), "blocks": []}
        elif good(text, kind):
            text = text.replace("[source]", "").rstrip() if kind != "code" else text
            if kind == "item":
                text = "- " + text
            elif kind == "code":
                text = "```\n" + text + "\n```"
            current["blocks"].append(text)
    if current["blocks"]:
        sections.append(current)
    title = re.split(r"\s+[—|]\s+|\s+-\s+(?=Apache|The Rust|Django)", title)[0]
    return {"package": package, "path": path, "title": title, "sections": sections}


def convert(job):
    package, kind, root, path = job
    path = pathlib.Path(path)
    try:
        if kind == "man":
            data = man_html(path)
        elif kind == "pod":
            data = pod_html(path)
        elif path.suffix == ".gz":
            data = gzip.decompress(path.read_bytes())
        else:
            data = path.read_bytes()
    except (OSError, subprocess.TimeoutExpired):
        return None
    if kind != "html" or b"charset" not in data[:3000].lower():
        data = data.decode("utf-8", "replace")
        data = re.sub(r"^\s*<\?xml[^>]*\?>", "", data)
    elif data.lstrip().startswith(b"<?xml"):
        data = re.sub(rb"^\s*<\?xml[^>]*\?>", b"", data)
        data = data.decode("utf-8", "replace")
    return make_doc(package, str(path.relative_to(root)), html_items(data))


def list_files(root, kind, folder, leave_out):
    base = root / folder
    if not base.exists():
        return
    for path in sorted(base.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        name = "/" + str(path.relative_to(root))
        if leave_out.search(name):
            continue
        if kind == "html" and re.search(r"\.x?html?(\.en)?(\.gz)?$", path.name):
            yield path
        elif kind == "pod" and re.search(r"\.pod$", path.name):
            yield path
        elif kind == "man" and re.search(r"/man/man[0-9n]/", name):
            yield path


def digest(text):
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--corpus", required=True, help="folder that fetch_corpus.sh filled")
    ap.add_argument("--list", default=str(pathlib.Path(__file__).with_name("corpus.tsv")))
    ap.add_argument("--out", required=True, help="JSON lines file to write")
    ap.add_argument("--only", default="", help="one package alone, to look at it")
    ap.add_argument("--jobs", type=int, default=2)
    args = ap.parse_args()
    seen, total = set(), 0
    with open(args.out, "w", encoding="utf-8") as out, ProcessPoolExecutor(args.jobs) as pool:
        for line in open(args.list, encoding="utf-8"):
            if line.startswith("#") or not line.strip():
                continue
            package, _, kind, cap, folder, leave_out = line.rstrip("\n").split("\t")
            if args.only and package != args.only:
                continue
            root = pathlib.Path(args.corpus) / "root" / package
            files = list(list_files(root, kind, folder, re.compile(leave_out)))
            files.sort(key=lambda p: digest(str(p.relative_to(root))))
            jobs = [(package, kind, str(root), str(p)) for p in files]
            size, docs, limit = 0, 0, float(cap) * 1e6
            for doc in pool.map(convert, jobs, chunksize=8):
                if doc is None or size > limit:
                    continue
                kept = 0
                for section in doc["sections"]:
                    blocks = []
                    for block in section["blocks"]:
                        block = unicodedata.normalize("NFC", block)
                        key = digest(SPACE.sub(" ", block.lower()))
                        if len(block) >= 40:
                            if key in seen:
                                continue
                            seen.add(key)
                        blocks.append(block)
                    if sum(map(len, blocks)) < 40:
                        blocks = []
                    section["blocks"] = blocks
                    kept += sum(len(b) + 2 for b in blocks)
                doc["sections"] = [s for s in doc["sections"] if s["blocks"]]
                if kept < 200:
                    continue
                size += kept
                docs += 1
                out.write(json.dumps(doc, ensure_ascii=False) + "\n")
            total += size
            print("%-28s %5d of %5d files %7.2f MB" % (package, docs, len(files), size / 1e6),
                  flush=True)
    print("total %.2f MB" % (total / 1e6))


if __name__ == "__main__":
    main()
