#include "server/answer/answer.h"

#include <algorithm>
#include <mutex>

namespace replayssm::server {
namespace {

constexpr const char* kStopping = "cancelled: the server is stopping";

void add(RequestUsage& sum, const RequestUsage& usage) {
  sum.prompt_tokens += usage.prompt_tokens;
  sum.cached_tokens += usage.cached_tokens;
  if (sum.cache_note.empty()) sum.cache_note = usage.cache_note;
  sum.drafted += usage.drafted;
  sum.accepted += usage.accepted;
  sum.preemptions += usage.preemptions;
  sum.queue_seconds = std::max(sum.queue_seconds, usage.queue_seconds);
  sum.prefill_seconds += usage.prefill_seconds;
  sum.decode_seconds += usage.decode_seconds;
}

}  // namespace

EngineAnswer::EngineAnswer(AnswerHead head, std::vector<Source> sources, Hooks hooks)
    : head_(std::move(head)),
      sources_(std::move(sources)),
      hooks_(std::move(hooks)),
      finished_(sources_.size()) {
  record_.id = head_.request_id;
  record_.answer = head_.id;
  record_.path = head_.path;
  record_.stream = head_.stream;
  record_.warnings = head_.warnings;
}

EngineAnswer::~EngineAnswer() { cancel("nobody waits for it"); }

void EngineAnswer::start(std::function<void(bool done)> wake) {
  for (const Source& source : sources_) source.generation->set_wake(wake);
}

Answer::Part EngineAnswer::take() {
  Part part;
  part.streaming = head_.stream;
  if (head_.stream && !head_sent_) {
    part.has_head = true;
    part.head = response_head();
    head_sent_ = true;
    on_stream_begin(&part.body);
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    Generation::Batch batch = sources_[i].generation->take();
    if (batch.first && record_.first_seconds < 0) {
      record_.first_seconds = std::chrono::duration<double>(*batch.first - head_.begin).count();
    }
    if (!batch.prompt.empty()) on_prompt(i, batch.prompt, &part.body);
    for (const TextPiece& piece : batch.pieces) {
      if (!head_.drop_text) on_piece(i, piece, &part.body);
    }
    for (const ChoiceEnd& end : batch.ends) {
      if (!head_.drop_text) record_.new_tokens += end.n_tokens;
      ++record_.finished[static_cast<size_t>(end.reason)];
      if (end.reason == FinishReason::kError) {
        if (error_.empty()) error_ = "the engine failed";
      } else if (end.reason == FinishReason::kCancelled) {
        if (error_.empty()) error_ = kStopping;
      } else {
        on_end(i, end, &part.body);
      }
    }
    if (batch.finished && !finished_[i]) {
      finished_[i] = true;
      ++n_finished_;
      add(record_.usage, batch.usage);
      record_.steps.add(batch.steps);
      if (!batch.error.empty()) error_ = batch.error;
    }
  }
  if (n_finished_ == sources_.size() && !ended_) finish(part);
  return part;
}

void EngineAnswer::finish(Part& part) {
  part.end = true;
  int status = 200;
  if (!head_.stream) {
    part.has_head = true;
    if (error_.empty()) {
      part.head = response_head();
      part.head.body = dump_json(whole());
    } else {
      status = error_ == kStopping ? 503 : 500;
      part.head = error_response(ApiError(status, error_));
    }
  } else if (!error_.empty()) {
    on_stream_error(ApiError(500, error_), &part.body);
  } else {
    on_stream_end(&part.body);
  }
  record(error_, status);
}

bool EngineAnswer::takes_long() const {
  constexpr size_t kLongBytes = size_t{256} << 10;
  return std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
    return source.generation->queued_bytes() > kLongBytes;
  });
}

void EngineAnswer::cancel(const std::string& why) {
  for (const Source& source : sources_) source.generation->set_wake(nullptr);
  if (ended_) return;
  ended_ = true;
  // The answer goes; what is left to count comes from the engine, part by part.
  struct Rest {
    std::mutex mutex;
    RequestRecord record;
    std::chrono::steady_clock::time_point begin;
    Hooks hooks;
    size_t n_left = 1;
    void part_done() {
      if (--n_left > 0) return;
      record.seconds = seconds_since(begin);
      hooks.done(record);
    }
  };
  const auto rest = std::make_shared<Rest>();
  rest->record = record_;
  rest->record.status = 499;
  rest->record.cancelled = true;
  rest->record.error = why;
  rest->record.new_tokens = record_.usage.new_tokens;
  rest->begin = head_.begin;
  rest->hooks = hooks_;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (finished_[i]) continue;
    {
      const std::lock_guard lock(rest->mutex);
      ++rest->n_left;
    }
    hooks_.cancel(sources_[i].engine_id);
    sources_[i].generation->on_finished([rest](const RequestUsage& usage, const Histogram& steps) {
      const std::lock_guard lock(rest->mutex);
      add(rest->record.usage, usage);
      rest->record.steps.add(steps);
      rest->record.new_tokens += usage.new_tokens;
      ++rest->record.finished[static_cast<size_t>(FinishReason::kCancelled)];
      rest->part_done();
    });
  }
  const std::lock_guard lock(rest->mutex);
  rest->part_done();
}

void EngineAnswer::record(const std::string& error, int status) {
  ended_ = true;
  record_.error = error;
  record_.status = status;
  record_.seconds = seconds_since(head_.begin);
  hooks_.done(record_);
}

HttpResponse EngineAnswer::response_head() const {
  HttpResponse response;
  if (head_.stream) response.content_type = "text/event-stream";
  if (!head_.warnings.empty()) {
    std::string line;
    for (const auto& warning : head_.warnings) line += (line.empty() ? "" : "; ") + warning;
    response.headers.emplace_back("x-replayssm-warning", line.substr(0, 2048));
  }
  return response;
}

Json EngineAnswer::report() const {
  const RequestUsage& usage = record_.usage;
  return {{"cached_tokens", usage.cached_tokens},
          {"cache_note", usage.cache_note},
          {"drafted", usage.drafted},
          {"accepted", usage.accepted},
          {"preemptions", usage.preemptions},
          {"queue_seconds", usage.queue_seconds},
          {"prefill_seconds", usage.prefill_seconds},
          {"decode_seconds", usage.decode_seconds}};
}

Json ChoicesAnswer::usage() const {
  const RequestUsage& usage = engine_usage();
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", new_tokens()},
          {"total_tokens", usage.prompt_tokens + new_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details",
           {{"accepted_prediction_tokens", usage.accepted},
            {"rejected_prediction_tokens", usage.drafted - usage.accepted}}}};
}

Json ChoicesAnswer::whole() {
  return {{"id", head().id},       {"object", object(false)}, {"created", head().created},
          {"model", head().model}, {"choices", choices()},    {"usage", usage()},
          {"replayssm", report()}};
}

void ChoicesAnswer::on_stream_end(std::string* out) {
  if (head().include_usage) {
    append_event(out, {{"id", head().id},
                       {"object", object(true)},
                       {"created", head().created},
                       {"model", head().model},
                       {"choices", Json::array()},
                       {"usage", usage()},
                       {"replayssm", report()}});
  }
  *out += "data: [DONE]\n\n";
}

void ChoicesAnswer::on_stream_error(const ApiError& error, std::string* out) {
  append_event(out, {{"error", error.object()}});
}

void ChoicesAnswer::append_chunk(std::string* out, Json choice) const {
  Json chunk = {{"id", head().id},
                {"object", object(true)},
                {"created", head().created},
                {"model", head().model},
                {"choices", Json::array({std::move(choice)})}};
  if (head().include_usage) chunk["usage"] = nullptr;
  append_event(out, chunk);
}

const char* finish_reason(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

void append_event(std::string* out, const Json& data) {
  *out += "data: ";
  *out += dump_json(data);
  *out += "\n\n";
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace replayssm::server
