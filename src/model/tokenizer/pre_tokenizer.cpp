#include "model/tokenizer/pre_tokenizer.h"

#include "core/error.h"
#include "model/tokenizer/byte_level.h"

namespace replayssm::model {

struct PreTokenizer::Run {
  RegexScratch& scratch;
  WordSink& sink;
};

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& plan : steps) {
    Step step{plan, std::nullopt};
    if (plan.kind == PreTokenizerStep::Kind::kSplit || plan.use_regex) {
      step.regex.emplace(plan.pattern, plan.where);
    }
    steps_.push_back(std::move(step));
  }
}

void PreTokenizer::split(std::string_view text, RegexScratch& scratch, WordSink& sink) const {
  Run run{scratch, sink};
  apply(0, text, false, run);
}

template <typename Take>
void PreTokenizer::each_piece(const Step& step, std::string_view text, Run& run,
                              Take&& take) const {
  SplitRegex::Matches matches(*step.regex, text, run.scratch);
  SplitRegex::Match match;
  size_t done = 0;
  const auto gap = [&](size_t end) {
    if (done < end && !step.plan.matches_only) take(text.substr(done, end - done));
  };
  while (matches.next(match)) {
    gap(match.begin);
    if (match.begin < match.end) take(text.substr(match.begin, match.end - match.begin));
    done = match.end;
  }
  gap(text.size());
}

void PreTokenizer::apply(size_t index, std::string_view text, bool byte_chars, Run& run) const {
  if (text.empty()) return;
  if (index == steps_.size()) {
    if (!byte_chars) return run.sink.take(text);
    const std::optional<std::string> bytes = from_byte_chars(text);
    REPLAYSSM_CHECK(bytes.has_value(), text);
    return run.sink.take(*bytes);
  }
  const Step& step = steps_[index];
  if (step.plan.kind == PreTokenizerStep::Kind::kByteLevel) {
    return apply_byte_level(index, text, run);
  }
  each_piece(step, text, run,
             [&](std::string_view piece) { apply(index + 1, piece, byte_chars, run); });
}

void PreTokenizer::apply_byte_level(size_t index, std::string_view text, Run& run) const {
  const Step& step = steps_[index];
  std::string prefixed;
  if (step.plan.add_prefix_space && text[0] != ' ') {
    prefixed = concat(' ', std::string(text));
    text = prefixed;
  }
  const auto pass_on = [&](std::string_view piece) {
    // The rewriting matters to further steps only; at the end it would be undone.
    if (index + 1 == steps_.size()) {
      run.sink.take(piece);
    } else {
      apply(index + 1, to_byte_chars(piece), true, run);
    }
  };
  if (step.regex) {
    each_piece(step, text, run, pass_on);
  } else {
    pass_on(text);
  }
}

}  // namespace replayssm::model
