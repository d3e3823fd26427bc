#include "model/tokenizer/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>
#include <utility>

#include "core/error.h"
#include "core/utf8.h"

namespace replayssm::model {
namespace {

constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 8 << 20;

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[160] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct RegexScratch::State {
  std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>> data;
  std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>> context;
  std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>> stack;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {
  // Only the whole match is asked for, so one pair of offsets serves every pattern.
  state_->data.reset(pcre2_match_data_create(1, nullptr));
  state_->context.reset(pcre2_match_context_create(nullptr));
  state_->stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
  if (!state_->data || !state_->context) throw std::bad_alloc();
  // Without a stack of its own JIT code uses 32 KiB of the machine's.
  if (state_->stack) pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
}

RegexScratch::~RegexScratch() = default;

struct SplitRegex::Code {
  std::unique_ptr<pcre2_code, Freed<pcre2_code_free>> code;
};

SplitRegex::SplitRegex(const std::string& pattern, const std::string& where)
    : code_(std::make_unique<Code>()) {
  std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Oniguruma's ^ and $ stand at every line's ends.
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                  &offset, context.get()));
  if (!code_->code) fail(where, ": bad pattern: ", pcre2_message(error));
  // Where there is no JIT, or it refuses the pattern, PCRE2 interprets. JIT code of PCRE2 10.42 can
  // backtrack into an atomic group that holds a lazy quantifier, so such groups are interpreted.
  if (pattern.find("(?>") != std::string::npos) return;
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
}

SplitRegex::~SplitRegex() = default;
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;

bool SplitRegex::Matches::next(Match& match) {
  const RegexScratch::State& state = *scratch_.state_;
  while (from_ <= text_.size()) {
    const int rc =
        pcre2_match(regex_.code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()),
                    text_.size(), from_, PCRE2_NO_UTF_CHECK, state.data.get(), state.context.get());
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) fail("tokenizer: the split pattern fails on this text: ", pcre2_message(rc));
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(state.data.get());
    const size_t begin = span[0];
    const size_t end = span[1];
    if (begin == end && end == last_end_) {
      if (from_ == text_.size()) return false;
      from_ += utf8_unit(text_, from_).n_bytes;
      continue;
    }
    from_ = end;
    last_end_ = end;
    match = {begin, end};
    return true;
  }
  return false;
}

}  // namespace replayssm::model
