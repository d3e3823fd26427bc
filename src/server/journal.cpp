#include "server/journal.h"

#include "server/log_line.h"

namespace replayssm::server {

void Journal::request(const std::string& route, const RequestRecord& record, bool quiet) {
  metrics_.request(route, record.status);
  if (!quiet) write(record);
}

void Journal::answer(const std::string& route, const RequestRecord& record) {
  metrics_.request(route, record.status);
  metrics_.answer(record);
  write(record);
}

void Journal::write(const RequestRecord& record) const {
  if (!log_) return;
  LogLine line("request");
  line.add("id", record.id).add("path", record.path).add("status", record.status);
  if (!record.answer.empty()) {
    const RequestUsage& usage = record.usage;
    line.add("answer", record.answer).add("stream", record.stream ? "true" : "false");
    line.add("prompt_tokens", usage.prompt_tokens).add("cached_tokens", usage.cached_tokens);
    if (!usage.cache_note.empty()) line.add("cache_note", usage.cache_note);
    line.add("new_tokens", record.new_tokens).add("drafted", usage.drafted);
    line.add("accepted", usage.accepted).add("preemptions", usage.preemptions);
    line.add_milliseconds("queue_ms", usage.queue_seconds);
    line.add_milliseconds("prefill_ms", usage.prefill_seconds);
    line.add_milliseconds("decode_ms", usage.decode_seconds);
    if (record.first_seconds >= 0) line.add_milliseconds("first_ms", record.first_seconds);
    if (record.cancelled) line.add("cancelled", "true");
  }
  line.add_milliseconds("total_ms", record.seconds);
  if (!record.warnings.empty()) {
    std::string all;
    for (const auto& warning : record.warnings) all += (all.empty() ? "" : "; ") + warning;
    line.add("warnings", all.substr(0, 512));
  }
  if (!record.error.empty()) line.add(record.cancelled ? "reason" : "error", record.error);
  log_(line.text());
}

}  // namespace replayssm::server
