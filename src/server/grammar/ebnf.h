// Grammars that requests bring, in EBNF as llama.cpp's GBNF has it.
#pragma once

#include <string>

namespace replayssm::server {

inline constexpr size_t kMaxGrammarBytes = size_t{32} << 10;

// Throws Error on a grammar whose size, nesting or repetitions would cost too much, and on what is
// no part of EBNF but of the compiler's own language.
void check_ebnf(const std::string& grammar);

}  // namespace replayssm::server
