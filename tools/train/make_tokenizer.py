#!/usr/bin/env python3
"""Trains the byte-level BPE tokenizer that the demo models share and writes its files.

Writes tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json
into every folder given with --out.
"""

import argparse
import json
import pathlib

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from common import doc_text, hash01, held_out, read_docs

VOCAB = 4096
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>",
] + ["<|reserved_%d|>" % i for i in range(7)]
# <think> and the tool marks are plain text to a reader, so decoding keeps them.
VISIBLE = set(SPECIAL[3:9])
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def sample_text(docs_path, share):
    for doc in read_docs(docs_path):
        if not held_out(doc) and hash01("tokenizer " + doc["path"]) < share:
            yield doc_text(doc)


def train(docs_path, share):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=24,
        show_progress=False,
    )
    tok.train_from_iterator(sample_text(docs_path, share), trainer)
    # The marks come after the 4,080 ordinary entries, as in the published families.
    added = json.loads(tok.to_str())
    base = len(added["model"]["vocab"])
    assert base + len(SPECIAL) == VOCAB, base
    added["added_tokens"] = [
        {"id": base + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": text not in VISIBLE}
        for i, text in enumerate(SPECIAL)
    ]
    return Tokenizer.from_str(json.dumps(added, ensure_ascii=False))


def write_files(tok, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    template = pathlib.Path(__file__).with_name("chat_template.jinja").read_text("utf-8")
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    ids = {text: tok.token_to_id(text) for text in SPECIAL}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "added_tokens_decoder": {
            str(number): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                          "single_word": False, "special": text not in VISIBLE}
            for text, number in ids.items()
        },
    }
    generation = {
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": 40,
    }
    for name, data in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(data, indent=2) + "\n", "utf-8")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--docs", help="JSON lines file from extract_text.py")
    ap.add_argument("--share", type=float, default=0.4, help="share of the documents to learn from")
    ap.add_argument("--from-file", help="an existing tokenizer.json, only to write the files again")
    ap.add_argument("--out", nargs="+", required=True, help="model folders")
    args = ap.parse_args()
    tok = Tokenizer.from_file(args.from_file) if args.from_file else train(args.docs, args.share)
    for folder in args.out:
        write_files(tok, pathlib.Path(folder))
    text = "The café's parser reads 1,024 bytes: <think>ok</think>\n\n    return x;\n"
    assert tok.decode(tok.encode(text).ids, skip_special_tokens=False) == text
    print("vocabulary", tok.get_vocab_size(), "text check passed")


if __name__ == "__main__":
    main()
