// The text of one request as the engine makes it: tokens to UTF-8, stop strings, and a queue that
// the answer reads at its own pace.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "runtime/engine.h"
#include "server/answer/stop.h"
#include "server/histogram.h"
#include "server/http/request_memory.h"

namespace replayssm::server {

// Which ids leave no text: the special tokens, except those that a client wants to see.
class HiddenTokens {
 public:
  HiddenTokens(const model::Tokenizer& tokenizer, const std::vector<std::string>& visible);
  bool operator()(int32_t id) const;

 private:
  std::vector<bool> hidden_;
};

// Code points of valid UTF-8.
int64_t count_code_points(std::string_view text);

// A token with what a client may ask of it.
struct TokenRecord {
  int32_t token = -1;
  int64_t offset = 0;  // code points of the choice's text before it
  std::optional<TokenLogprob> logprob;
};

// A part of a choice's text and the tokens that begin in it. All its text comes from drafts that
// stood, or none does.
struct TextPiece {
  int32_t choice = 0;
  bool from_draft = false;
  std::string text;
  std::vector<TokenRecord> tokens;
};

struct ChoiceEnd {
  int32_t choice = 0;
  FinishReason reason = FinishReason::kError;
  int64_t n_tokens = 0;  // that were generated, the one that completes a stop string included
  std::string stop;      // the stop string that ended it; empty if none did

  // Whether the model did not end it itself.
  bool cut() const {
    return reason != FinishReason::kStopId && reason != FinishReason::kConstraintDone;
  }
};

struct GenerationOptions {
  int32_t n = 1;
  std::vector<std::string> stops;
  bool keep_tokens = false;                    // fill TextPiece::tokens
  std::shared_ptr<const HiddenTokens> hidden;  // null: all tokens leave text
  bool wake_each = false;                      // at each piece, not at the end alone
  std::shared_ptr<RequestMemory> memory;       // of what waits to be read; null: without a limit
};

class Generation final : public Listener {
 public:
  Generation(std::shared_ptr<const model::Tokenizer> tokenizer, const GenerationOptions& options);

  // The engine's side.
  void prompt_logprobs(std::vector<TokenLogprob> logprobs) override;
  size_t tokens(std::span<const TokenEvent> events) override;
  void choice_finished(int32_t choice, FinishReason reason) override;
  void finished(const RequestUsage& usage, const std::string& error) override;

  // The answer's side. Pieces of one choice come in order, its end after them.
  struct Batch {
    std::vector<TextPiece> pieces;
    std::vector<ChoiceEnd> ends;
    std::vector<TokenLogprob> prompt;                            // once, before all else
    std::optional<std::chrono::steady_clock::time_point> first;  // text: when it came
    bool finished = false;
    RequestUsage usage;
    Histogram steps;  // times between two steps of a choice
    std::string error;
  };
  // All that came since the last call.
  Batch take();
  // Null: no more. Calls come with a lock held and must not block. `done`: all has come.
  void set_wake(std::function<void(bool done)> wake);
  // True once the reader is so far behind that the rest is dropped.
  bool overflowed() const;
  // About what the next take() will take as JSON.
  size_t queued_bytes() const;
  // Nobody reads any more: `done` gets the last numbers when they come, which may be at once.
  using Done = std::function<void(const RequestUsage& usage, const Histogram& steps)>;
  void on_finished(Done done);

 private:
  struct Choice {
    Utf8Stream utf8;
    StopMatcher stop;
    std::deque<TokenRecord> waiting;  // tokens whose text is not out yet
    int64_t decoded = 0;              // code points of text up to the last token
    int64_t released = 0;             // of these, handed on
    int64_t n_tokens = 0;
    bool from_draft = false;  // of the last token
    bool ended = false;
    std::optional<std::chrono::steady_clock::time_point> last_step;
  };

  void release(int32_t index, std::string text, bool all_tokens);
  void wake(bool done);
  void queue(size_t bytes);

  const std::shared_ptr<const model::Tokenizer> tokenizer_;
  const GenerationOptions options_;
  std::vector<Choice> choices_;  // the engine's thread alone
  Histogram steps_;              // likewise

  mutable std::mutex mutex_;
  Batch batch_;
  MemoryShare queued_;  // about what the batch will take as JSON
  size_t queued_bytes_ = 0;
  bool finished_ = false;
  RequestUsage usage_;  // once finished
  Done done_;
  bool any_ = false;  // some text came
  bool overflowed_ = false;
  std::function<void(bool done)> wake_;
};

}  // namespace replayssm::server
