#!/usr/bin/env python3
"""Writes src/model/tokenizer/unicode_additions.h.

The split patterns of tokenizer.json name Unicode properties. The `tokenizers` library resolves them
with its own Oniguruma (Unicode 16); Debian 12's PCRE2 10.42 knows Unicode 14. This script asks the
library and PCRE2 about every code point, property by property, and writes what PCRE2 lacks. A newer
PCRE2 needs fewer additions; too many do no harm, since each is right by the library's account.

A property of which PCRE2 has a code point that the library lacks cannot be mended by additions: it
is left out, and patterns that use it are refused.

Usage, with `pip install tokenizers==0.23.2` and libpcre2-8 at hand:
    tools/unicode_additions.py > src/model/tokenizer/unicode_additions.h
"""

import ctypes

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

# Property name in the pattern -> how PCRE2 spells the same thing. PCRE2 takes a bare script name
# for "script extensions"; Oniguruma means the script itself.
CATEGORIES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po "
    "S Sm Sc Sk So Z Zs Zl Zp Cc Cf"
).split()
SCRIPTS = "Arabic Cyrillic Devanagari Greek Han Hangul Hebrew Hiragana Katakana Latin Thai".split()
PROPERTIES = {name: rf"\p{{{name}}}" for name in CATEGORIES}
PROPERTIES |= {name: rf"\p{{sc:{name}}}" for name in SCRIPTS}

PCRE2_UTF, PCRE2_NO_UTF_CHECK = 0x00080000, 0x40000000
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
EVERYTHING = "".join(map(chr, CODE_POINTS))


def library_set(pattern):
    left = set(normalizers.Replace(Regex(pattern), "").normalize_str(EVERYTHING))
    return {c for c in CODE_POINTS if chr(c) not in left}


def library_punctuation():
    """What the library's Punctuation pre-tokenizer splits off."""
    split = pre_tokenizers.Punctuation("removed")
    return {c for c in CODE_POINTS if not split.pre_tokenize_str(chr(c))}


def library_word_characters():
    """What the library takes for part of a word beside an added token with single_word."""
    tok = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tok.add_tokens([AddedToken("\ue000", single_word=True, normalized=False)])
    words, batch = set(), 64
    for i in range(0, len(CODE_POINTS), batch):
        part = [c for c in CODE_POINTS[i : i + batch] if c != 0xE000]
        # A character joins the mark behind it or leaves it alone; "\n" parts the pairs.
        text = "".join(f"{chr(c)}\ue000\n" for c in part)
        found = {start for start, _ in tok.encode(text).offsets}
        words |= {c for k, c in enumerate(part) if 3 * k + 1 not in found}
    return words


def pcre2_set(pattern):
    lib = ctypes.CDLL("libpcre2-8.so.0")
    lib.pcre2_compile_8.restype = ctypes.c_void_p
    lib.pcre2_match_data_create_8.restype = ctypes.c_void_p
    lib.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
    text, source = EVERYTHING.encode(), pattern.encode()
    error, offset = ctypes.c_int(), ctypes.c_size_t()
    code = lib.pcre2_compile_8(
        source,
        ctypes.c_size_t(len(source)),
        ctypes.c_uint32(PCRE2_UTF),
        ctypes.byref(error),
        ctypes.byref(offset),
        None,
    )
    if not code:
        raise ValueError(f"PCRE2 error {error.value} in {pattern}")
    data = ctypes.c_void_p(lib.pcre2_match_data_create_8(1, None))
    span = lib.pcre2_get_ovector_pointer_8(data)
    found, pos = set(), 0
    while (
        lib.pcre2_match_8(
            ctypes.c_void_p(code),
            text,
            ctypes.c_size_t(len(text)),
            ctypes.c_size_t(pos),
            ctypes.c_uint32(PCRE2_NO_UTF_CHECK),
            data,
            None,
        )
        > 0
    ):
        found.add(ord(text[span[0] : span[1]].decode()))
        pos = span[1]
        if pos == len(text):
            break
    return found


def ranges(points):
    """Class body: \\x{A}-\\x{B} for each run of consecutive code points."""
    out, points = [], sorted(points)
    start = 0
    for i in range(1, len(points) + 1):
        if i == len(points) or points[i] != points[i - 1] + 1:
            first, last = points[start], points[i - 1]
            out.append(f"\\x{{{first:X}}}" + (f"-\\x{{{last:X}}}" if last > first else ""))
            start = i
    return out


def number_ranges(points):
    """C++ pairs {first, last}."""
    for part in ranges(points):
        ends = [end[3:-1] for end in part.split("-")]
        yield f"{{0x{ends[0]}, 0x{ends[-1]}}}"


def literal(parts, indent):
    """C++ raw string literals of at most 100 columns."""
    lines, line = [], ""
    for part in parts:
        if len(indent) + len(line) + len(part) + 10 > 100:
            lines.append(line)
            line = ""
        line += part
    lines.append(line)
    return "\n".join(f'{indent}R"({line})"' for line in lines)


def main():
    entries, left_out = [], []
    for name, pcre2 in PROPERTIES.items():
        ours, theirs = pcre2_set(pcre2), library_set(rf"\p{{{name}}}")
        if ours - theirs:
            left_out.append(name)
            continue
        entries.append((name, pcre2, theirs - ours))
    print(
        "// Generated by tools/unicode_additions.py from `tokenizers` "
        f"{tokenizers.__version__}; do not edit."
    )
    print(
        "//\n// Character properties of split patterns: what PCRE2 calls them, and the code points "
        "that the\n// library's newer Unicode has and PCRE2 10.42 lacks, as the body of a "
        "character class."
    )
    print(
        f"// Left out, since PCRE2 has points in them that the library has not: "
        f"{', '.join(left_out)}."
    )
    print("""#pragma once

#include <string_view>

namespace replayssm::model {

struct UnicodeProperty {
  std::string_view name;
  std::string_view pcre2;
  std::string_view additions;
};

// clang-format off
inline constexpr UnicodeProperty kUnicodeProperties[] = {""")
    for name, pcre2, extra in entries:
        if not extra:
            print(f'    {{"{name}", R"({pcre2})", ""}},')
        else:
            print(f'    {{"{name}", R"({pcre2})",  // {len(extra)} code points')
            print(literal(ranges(extra), "     ") + "},")
    print("""};

// All that the library's Punctuation pre-tokenizer splits off (ASCII punctuation, ASCII symbols and
// the general category P of an older Unicode).
inline constexpr std::string_view kPunctuationClass =""")
    print(literal(ranges(library_punctuation()), "    ") + ";")
    old_words = pcre2_set(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]")
    words = library_word_characters()
    if old_words - words:
        raise ValueError("PCRE2 has word characters that the library has not")
    print("""
struct CodePointRange {
  char32_t first;
  char32_t last;
};

// Characters of words (Alphabetic, Mark, Decimal_Number, Connector_Punctuation, Join_Control) that
// the library's Unicode has and Unicode 14 lacks.
inline constexpr CodePointRange kWordAdditions[] = {""")
    line = "   "
    for pair in number_ranges(words - old_words):
        if len(line) + len(pair) + 2 > 100:
            print(line)
            line = "   "
        line += f" {pair},"
    print(f"{line}\n}};")
    print("""// clang-format on

}  // namespace replayssm::model""")


if __name__ == "__main__":
    main()
