// Tokens to text: whatever comes in one step or in several, the answer is the same.
#include "server/answer/generation.h"

#include <gtest/gtest.h>

#include "core/utf8.h"

namespace replayssm::server {
namespace {

std::shared_ptr<const model::Tokenizer> tokenizer() {
  static const auto kTokenizer = std::make_shared<const model::Tokenizer>(
      model::Tokenizer::load(REPLAYSSM_SOURCE_DIR "/models/demo-gdn/tokenizer.json"));
  return kTokenizer;
}

struct Result {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets;
  FinishReason reason = FinishReason::kError;
  int64_t n_tokens = 0;
  bool operator==(const Result&) const = default;
};

// Feeds the ids `step` at a time, reading after each step or at the end.
Result feed(const std::vector<int32_t>& ids, const std::vector<std::string>& stops, size_t step,
            bool read_each) {
  GenerationOptions options;
  options.stops = stops;
  options.keep_tokens = true;
  options.hidden = std::make_shared<HiddenTokens>(*tokenizer(), std::vector<std::string>());
  Generation generation(tokenizer(), options);
  Result result;
  const auto read = [&] {
    const Generation::Batch batch = generation.take();
    for (const TextPiece& piece : batch.pieces) {
      EXPECT_TRUE(is_valid_utf8(piece.text));
      result.text += piece.text;
      for (const auto& token : piece.tokens) {
        result.tokens.push_back(token.token);
        result.offsets.push_back(token.offset);
      }
    }
    for (const ChoiceEnd& end : batch.ends) {
      result.reason = end.reason;
      result.n_tokens = end.n_tokens;
    }
  };
  FinishReason reason = FinishReason::kLength;
  for (size_t at = 0; at < ids.size(); at += step) {
    std::vector<TokenEvent> events;
    for (size_t i = at; i < std::min(ids.size(), at + step); ++i) {
      TokenEvent event;
      event.token = ids[i];
      event.logprob = TokenLogprob{ids[i], -1, {}};
      events.push_back(event);
    }
    const size_t kept = generation.tokens(events);
    if (read_each) read();
    if (kept < events.size()) {
      reason = FinishReason::kStopped;
      break;
    }
  }
  generation.choice_finished(0, reason);
  generation.finished({}, "");
  read();
  return result;
}

TEST(Generation, SameForEveryStepSize) {
  const std::string text = "Well: caf\xC3\xA9 \xF0\x9F\x98\x80\xF0\x9F\x91\xA9 and\nUser: more";
  const auto ids = tokenizer()->encode(text);
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{}, {"\nUser"}, {"\xF0\x9F\x91\xA9"}, {"zzz", "more"}}) {
    const Result whole = feed(ids, stops, ids.size(), false);
    for (size_t step = 1; step <= ids.size(); ++step) {
      EXPECT_TRUE(feed(ids, stops, step, true) == whole) << step;
      EXPECT_TRUE(feed(ids, stops, step, false) == whole) << step;
    }
    const size_t end = stops.empty() ? std::string::npos : text.find(stops.back());
    EXPECT_EQ(whole.text, text.substr(0, end));
    EXPECT_EQ(whole.reason, stops.empty() ? FinishReason::kLength : FinishReason::kStopped);
  }
}

TEST(Generation, TokensThatBeginBehindTheStopAreLeftOut) {
  const auto ids = tokenizer()->encode("alpha beta\nUser: gamma");
  const Result result = feed(ids, {"\nUser"}, 1, true);
  ASSERT_FALSE(result.tokens.empty());
  std::string bytes;
  for (const int32_t id : result.tokens) bytes += tokenizer()->token_bytes(id);
  EXPECT_TRUE(bytes.starts_with("alpha beta")) << bytes;
  EXPECT_LT(result.offsets.back(), 10);
}

// A cap in the middle of a character leaves valid text.
TEST(Generation, UnfinishedCharacter) {
  auto ids = tokenizer()->encode("a\xF0\x9F\x98\x80");
  ASSERT_GT(ids.size(), 2u);  // the character has several tokens
  ids.pop_back();
  EXPECT_EQ(feed(ids, {}, 1, true).text, "a\xEF\xBF\xBD");
  EXPECT_EQ(feed(ids, {}, ids.size(), true).tokens, ids);
}

TEST(Generation, SpecialTokensLeaveNoText) {
  const auto end = tokenizer()->id_of("<|im_end|>");
  ASSERT_TRUE(end);
  auto ids = tokenizer()->encode("one");
  ids.push_back(*end);
  EXPECT_EQ(feed(ids, {}, 1, true).text, "one");
}

// A reader that never reads costs a bounded queue, and the engine is told to stop; so does an
// answer that nobody reads before its end.
void expect_bounded(bool stream, const std::string& message) {
  GenerationOptions options;
  options.keep_tokens = true;
  options.wake_each = stream;
  Generation generation(tokenizer(), options);
  std::vector<TokenEvent> events(1);
  events[0].token = tokenizer()->encode("word")[0];
  events[0].logprob = TokenLogprob{0, -1, std::vector<std::pair<int32_t, double>>(10000)};
  int n = 0;
  while (generation.tokens(events) == 1 && n < 100000) ++n;
  EXPECT_LT(n, 1000);
  EXPECT_TRUE(generation.overflowed());
  generation.choice_finished(0, FinishReason::kStopped);
  generation.finished({}, "");
  EXPECT_NE(generation.take().error.find(message), std::string::npos);
}

TEST(Generation, QueueIsBounded) {
  expect_bounded(true, "the client reads too slowly");
  expect_bounded(false, "the answer fills the memory");
}

}  // namespace
}  // namespace replayssm::server
