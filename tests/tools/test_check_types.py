#!/usr/bin/env python3
"""tools/check_types.py finds what breaks the one-definition rule, and nothing else."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_types  # noqa: E402


class CheckTypes(unittest.TestCase):
    def test_one_name_in_two_files(self):
        self.assertEqual(
            check_types.repeated({
                "a.h": "namespace n {\nstruct Cost {\n  int a;\n};\n}  // namespace n\n",
                "b.h": "namespace n {\n/* { */ class Cost final : public Base {\n};\n}\n",
                "c.h": "namespace m {\nstruct Cost {};\n}\n"}),
            [("n::Cost", ["a.h", "b.h"])])

    def test_kinds_of_types(self):
        text = ("#include <x>\nnamespace n::k {\nenum class E : int { kA };\nunion U {};\n"
                "template <class T>\nstruct T1 { struct Inner {}; };\n"
                "struct alignas(16) A {};\nstruct Declared;\n}\n")
        self.assertEqual(list(check_types.types_of(text)),
                         ["n::k::E", "n::k::U", "n::k::T1", "n::k::T1::Inner", "n::k::A"])

    def test_what_belongs_to_a_file(self):
        text = ("namespace n {\nnamespace {\nstruct Hidden {};\n}\n"
                "void f() {\n  struct Local {};\n  if (x) { puts(\"} struct No {\"); }\n}\n"
                "template <>\nstruct Traits<int> {};\nstruct After {};\n}\n")
        self.assertEqual(list(check_types.types_of(text)), ["n::After"])


if __name__ == "__main__":
    unittest.main()
