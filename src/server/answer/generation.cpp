#include "server/answer/generation.h"

#include <algorithm>

#include "core/error.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxQueuedBytes = size_t{64} << 20;

// As a value of JSON, with its token's text.
constexpr size_t kLogprobBytes = 256;

size_t bytes_of(const TextPiece& piece) {
  size_t bytes = piece.text.size();
  for (const auto& token : piece.tokens) {
    bytes += kLogprobBytes * (1 + (token.logprob ? token.logprob->top.size() : 0));
  }
  return bytes;
}

size_t bytes_of(const std::vector<TokenLogprob>& logprobs) {
  size_t bytes = 0;
  for (const auto& logprob : logprobs) bytes += kLogprobBytes * (1 + logprob.top.size());
  return bytes;
}

}  // namespace

HiddenTokens::HiddenTokens(const model::Tokenizer& tokenizer,
                           const std::vector<std::string>& visible)
    : hidden_(static_cast<size_t>(tokenizer.vocab_size())) {
  for (const int32_t id : tokenizer.special_ids()) {
    hidden_[static_cast<size_t>(id)] =
        std::find(visible.begin(), visible.end(), tokenizer.token_bytes(id)) == visible.end();
  }
}

bool HiddenTokens::operator()(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < hidden_.size() && hidden_[static_cast<size_t>(id)];
}

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

Generation::Generation(std::shared_ptr<const model::Tokenizer> tokenizer,
                       const GenerationOptions& options)
    : tokenizer_(std::move(tokenizer)), options_(options), queued_(options.memory) {
  for (int32_t i = 0; i < options.n; ++i) {
    choices_.push_back({{}, StopMatcher(options.stops), {}, 0, 0, 0, false, false, {}});
  }
}

void Generation::prompt_logprobs(std::vector<TokenLogprob> logprobs) {
  const std::lock_guard lock(mutex_);
  queue(bytes_of(logprobs));
  if (!overflowed_) batch_.prompt = std::move(logprobs);
}

size_t Generation::tokens(std::span<const TokenEvent> events) {
  if (!events.empty()) {
    Choice& choice = choices_[static_cast<size_t>(events[0].choice)];
    const auto now = std::chrono::steady_clock::now();
    if (choice.last_step) {
      steps_.add(std::chrono::duration<double>(now - *choice.last_step).count());
    }
    choice.last_step = now;
  }
  for (size_t i = 0; i < events.size(); ++i) {
    const TokenEvent& event = events[i];
    REPLAYSSM_CHECK(event.choice >= 0 && event.choice < options_.n, event.choice);
    Choice& choice = choices_[static_cast<size_t>(event.choice)];
    if (choice.ended) return i;
    ++choice.n_tokens;
    choice.from_draft = event.from_draft;
    if (options_.keep_tokens) {
      choice.waiting.push_back({event.token, choice.decoded, event.logprob});
    }
    std::string text;
    if (options_.hidden == nullptr || !(*options_.hidden)(event.token)) {
      text = choice.utf8.push(tokenizer_->token_bytes(event.token));
    }
    choice.decoded += count_code_points(text);
    release(event.choice, choice.stop.push(text), false);
    if (choice.stop.stopped()) {
      choice.ended = true;
      return i;
    }
  }
  const std::lock_guard lock(mutex_);
  return overflowed_ ? 0 : events.size();
}

void Generation::choice_finished(int32_t index, FinishReason reason) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.ended = true;
  if (choice.stop.stopped()) {
    reason = FinishReason::kStopped;
  } else {
    std::string rest = choice.stop.push(choice.utf8.finish());
    if (choice.stop.stopped()) {
      reason = FinishReason::kStopped;
    } else {
      rest += choice.stop.finish();
    }
    release(index, std::move(rest), !choice.stop.stopped());
  }
  const std::lock_guard lock(mutex_);
  batch_.ends.push_back({index, reason, choice.n_tokens, choice.stop.found()});
  if (options_.wake_each) wake(false);
}

void Generation::finished(const RequestUsage& usage, const std::string& error) {
  Done done;
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    usage_ = usage;
    batch_.finished = true;
    batch_.usage = usage;
    batch_.steps = steps_;
    batch_.error = !overflowed_ ? error
                   : options_.wake_each
                       ? "the client reads too slowly: what waits for it fills its memory"
                       : "the answer fills the memory that it may take; ask for less, or for a "
                         "stream";
    done = std::exchange(done_, nullptr);
    wake(true);
  }
  if (done) done(usage, steps_);
}

void Generation::on_finished(Done done) {
  {
    const std::lock_guard lock(mutex_);
    if (!finished_) {
      done_ = std::move(done);
      return;
    }
  }
  done(usage_, steps_);
}

size_t Generation::queued_bytes() const {
  const std::lock_guard lock(mutex_);
  return queued_bytes_;
}

// With the lock held.
void Generation::queue(size_t bytes) {
  queued_bytes_ += bytes;
  overflowed_ = overflowed_ || queued_bytes_ > kMaxQueuedBytes ||
                !queued_.set(static_cast<int64_t>(queued_bytes_));
}

// Hands on text and the tokens that begin before its end. `all_tokens`: those without text too.
void Generation::release(int32_t index, std::string text, bool all_tokens) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.released += count_code_points(text);
  TextPiece piece{index, choice.from_draft, std::move(text), {}};
  while (!choice.waiting.empty() &&
         (all_tokens || choice.waiting.front().offset < choice.released)) {
    piece.tokens.push_back(std::move(choice.waiting.front()));
    choice.waiting.pop_front();
  }
  if (piece.text.empty() && piece.tokens.empty()) return;
  const std::lock_guard lock(mutex_);
  if (!any_) batch_.first = std::chrono::steady_clock::now();
  any_ = true;
  queue(bytes_of(piece));
  if (overflowed_) return;
  TextPiece* last = batch_.pieces.empty() ? nullptr : &batch_.pieces.back();
  if (last != nullptr && last->choice == piece.choice && last->from_draft == piece.from_draft) {
    last->text += piece.text;
    std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(last->tokens));
  } else {
    batch_.pieces.push_back(std::move(piece));
  }
  if (options_.wake_each) wake(false);
}

Generation::Batch Generation::take() {
  const std::lock_guard lock(mutex_);
  // A whole answer holds its share to its end: it is made of all that.
  if (options_.wake_each) {
    queued_bytes_ = 0;
    queued_.set(0);
  }
  return std::exchange(batch_, {});
}

void Generation::set_wake(std::function<void(bool done)> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
  if (batch_.finished && wake_) wake_(true);
}

bool Generation::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

void Generation::wake(bool done) {
  if (wake_) wake_(done);
}

}  // namespace replayssm::server
