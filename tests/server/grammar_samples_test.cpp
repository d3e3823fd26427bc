// Texts drawn from the grammars of random patterns, against PCRE2: each text matches, and what is
// near to it is let through if and only if it matches. check_samples.py does the same for schemas,
// against the jsonschema package.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include "core/utf8.h"
#include "sampler.h"
#include "server/api_error.h"
#include "server/grammar/formats.h"
#include "server/grammar/grammar.h"

namespace replayssm::server {
namespace {

class Matcher {
 public:
  explicit Matcher(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOLLAR_ENDONLY,
                          &error, &at, nullptr);
    EXPECT_NE(code_, nullptr) << pattern;
    data_ = pcre2_match_data_create(1, nullptr);
  }
  ~Matcher() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  bool matches(const std::string& text) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = pcre2_match(code_, subject, text.size(), 0, 0, data_, nullptr);
    if (rc == PCRE2_ERROR_MATCHLIMIT) {  // it went back too often: all ways at once
      std::vector<int> workspace(100000);
      rc = pcre2_dfa_match(code_, subject, text.size(), 0, 0, data_, nullptr, workspace.data(),
                           workspace.size());
    }
    EXPECT_TRUE(rc >= 0 || rc == PCRE2_ERROR_NOMATCH) << rc << " " << text;
    return rc >= 0;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* data_;
};

class RandomPattern {
 public:
  explicit RandomPattern(uint64_t seed) : random_(seed) {}

  std::string whole() { return "^" + branch(3) + "$"; }
  uint64_t below(uint64_t n) { return random_() % n; }

 private:
  template <size_t kN>
  std::string one_of(const char* const (&list)[kN]) {
    return list[below(kN)];
  }

  std::string branch(int depth) {
    std::string out;
    for (uint64_t n = below(4); n > 0; --n) out += atom(depth) + repetition();
    return out;
  }

  std::string atom(int depth) {
    if (depth > 0 && below(10) < 4) {
      std::string out = below(2) == 0 ? "(" : "(?:";
      for (uint64_t n = below(3); n > 0; --n) out += branch(depth - 1) + "|";
      return out + branch(depth - 1) + ")";
    }
    return one_of({"a", "b", "c", "0", "-", ":", "\\.", "\\+", "\xC3\xA9", "\\d", "\\w", "[a-c]",
                   "[^a0-9]", "[x\\-y]", ".", "[0-4:]"});
  }

  std::string repetition() {
    const uint64_t low = below(4);
    switch (below(9)) {
      case 0:
      case 1:
        return "?";
      case 2:
        return "*";
      case 3:
        return "+";
      case 4:
        return concat("{", low, "}");
      case 5:
        return concat("{", low, ",}");
      case 6:
        return concat("{", low, ",", low + below(4), "}");
      default:
        return below(40) == 0 ? concat("{", 120 + below(20), ",", 150 + below(200), "}") : "";
    }
  }

  std::mt19937_64 random_;
};

bool accepts(const ConstraintPtr& grammar, const ServedModel& model, const std::string& text) {
  const auto constraint = grammar->clone();
  for (const int32_t id : model.tokenizer->encode(text)) {
    if (!constraint->accept(id)) return false;
  }
  return constraint->accept(model.eos_ids.at(0));
}

struct Counts {
  int texts = 0;
  int near_matches = 0;
  int near_others = 0;
};

// `make`: the grammar of a pattern; `open` and `close`: what stands round a match.
template <typename Make>
Counts sample(int n_patterns, uint64_t seed, const std::string& quote, const Make& make) {
  static const ServedModel kModel = sampled_model();
  static GrammarCompiler grammars(kModel);
  Sampler sampler(kModel, seed);
  RandomPattern random(seed);
  Counts counts;
  for (int i = 0; i < n_patterns; ++i) {
    const std::string pattern = random.whole();
    SCOPED_TRACE(pattern);
    ConstraintPtr grammar;
    try {
      grammar = make(grammars, pattern);
    } catch (const ApiError& e) {
      EXPECT_NE(std::string(e.what()).find("too "), std::string::npos) << e.what();
      continue;
    }
    const Matcher matcher(pattern);
    for (int k = 0; k < 10; ++k) {
      const auto drawn = sampler.draw(*grammar);
      if (!drawn) continue;
      ++counts.texts;
      const std::string text = drawn->substr(quote.size(), drawn->size() - 2 * quote.size());
      EXPECT_EQ(quote + text + quote, *drawn);
      EXPECT_TRUE(matcher.matches(text)) << text;
      std::string near = text;
      const char other = "ab0-:.+cxz"[random.below(10)];
      if (near.empty() || random.below(2) == 0) {
        near.insert(random.below(near.size() + 1), 1, other);
      } else {
        near.erase(random.below(near.size()), 1);
      }
      if (!is_ascii(near)) continue;
      const bool match = matcher.matches(near);
      ++(match ? counts.near_matches : counts.near_others);
      EXPECT_EQ(accepts(grammar, kModel, quote + near + quote), match) << near;
    }
  }
  return counts;
}

TEST(GrammarSamples, PatternsMatchFromEndToEnd) {
  const Counts counts =
      sample(300, 1, "\"", [](GrammarCompiler& grammars, const std::string& text) {
        Warnings warnings;
        return grammars.structured(
            {Structure::Kind::kSchema, "schema", {{"type", "string"}, {"pattern", text}}},
            warnings);
      });
  EXPECT_GT(counts.texts, 1500);
  EXPECT_GT(counts.near_matches, 100);
  EXPECT_GT(counts.near_others, 100);
}

TEST(GrammarSamples, RegularExpressionsOfWholeAnswers) {
  const Counts counts = sample(200, 2, "", [](GrammarCompiler& grammars, const std::string& text) {
    Warnings warnings;
    return grammars.structured({Structure::Kind::kRegex, "guided_regex", text}, warnings);
  });
  EXPECT_GT(counts.texts, 1000);
  EXPECT_GT(counts.near_matches, 100);
}

// The format's own pattern takes no detour through the parser here.
TEST(GrammarSamples, FormatsHoldTheirPatterns) {
  const ServedModel model = sampled_model();
  GrammarCompiler grammars(model);
  Sampler sampler(model, 3);
  for (const char* format : {"date", "time", "date-time", "duration", "email", "hostname", "ipv4",
                             "ipv6", "uuid", "uri", "uri-reference", "json-pointer"}) {
    SCOPED_TRACE(format);
    ASSERT_EQ(kind_of_format(format), FormatKind::kEnforced);
    Warnings warnings;
    const auto grammar = grammars.structured(
        {Structure::Kind::kSchema, "schema", {{"type", "string"}, {"format", format}}}, warnings);
    const Matcher matcher(format_pattern(format));
    for (int i = 0; i < 60; ++i) {
      const auto drawn = sampler.draw(*grammar);
      if (drawn) {
        EXPECT_TRUE(matcher.matches(drawn->substr(1, drawn->size() - 2))) << *drawn;
      }
    }
  }
}

}  // namespace
}  // namespace replayssm::server
