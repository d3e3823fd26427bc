#include "server/metrics.h"

namespace replayssm::server {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

void append_head(std::string& out, const std::string& name, const std::string& help,
                 const char* type) {
  out += concat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

std::string escaped(const std::string& label) {
  std::string out;
  for (const char c : label) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

void Histogram::add(double seconds) {
  size_t i = 0;
  while (i < kBounds.size() && seconds > kBounds[i]) ++i;
  ++counts_[i];
  sum_ += seconds;
}

void Histogram::append(std::string& out, const std::string& name, const std::string& help) const {
  append_head(out, name, help, "histogram");
  int64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < kBounds.size() ? number(kBounds[i]) : "+Inf";
    out += concat(name, "_bucket{le=\"", bound, "\"} ", below, "\n");
  }
  out += concat(name, "_sum ", number(sum_), "\n", name, "_count ", below, "\n");
}

void Metrics::request(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
}

void Metrics::answer(const RequestRecord& record) {
  const std::lock_guard lock(mutex_);
  if (record.cancelled) ++left_;
  if (record.first_seconds >= 0) first_token_.add(record.first_seconds);
  duration_.add(record.seconds);
}

std::string Metrics::text(const EngineStats& stats, const MemoryReport& memory) const {
  std::string out;
  const auto value = [&](const char* name, const char* help, const char* type, int64_t v) {
    append_head(out, name, help, type);
    out += concat(name, " ", v, "\n");
  };
  const auto counter = [&](const char* name, const char* help, int64_t v) {
    value(name, help, "counter", v);
  };
  const auto gauge = [&](const char* name, const char* help, int64_t v) {
    value(name, help, "gauge", v);
  };
  gauge("replayssm_requests_running", "requests in the batch", stats.running);
  gauge("replayssm_requests_queued", "requests that wait", stats.queued);
  gauge("replayssm_slots", "checkpoint slots", stats.slots);
  gauge("replayssm_slots_free", "checkpoint slots that are free", stats.slots_free);
  gauge("replayssm_rings", "replay rings", stats.rings);
  gauge("replayssm_rings_free", "replay rings that are free", stats.rings_free);
  gauge("replayssm_kv_pages", "KV pages", stats.pages);
  gauge("replayssm_kv_pages_free", "KV pages that are free", stats.pages_free);
  gauge("replayssm_snapshots", "state snapshots held", stats.snapshots);
  gauge("replayssm_snapshot_bytes", "bytes of the snapshots", stats.snapshot_bytes);
  gauge("replayssm_host_snapshots", "state snapshots in host memory", stats.host_snapshots);
  gauge("replayssm_host_snapshot_bytes", "bytes of those", stats.host_snapshot_bytes);
  counter("replayssm_steps_total", "passes of the model", stats.steps);
  counter("replayssm_prompt_tokens_total", "prompt tokens taken", stats.prompt_tokens);
  counter("replayssm_cached_tokens_total", "prompt tokens not computed again", stats.cached_tokens);
  counter("replayssm_new_tokens_total", "tokens generated", stats.new_tokens);
  counter("replayssm_drafted_tokens_total", "tokens proposed by drafters", stats.drafted);
  counter("replayssm_accepted_tokens_total", "drafted tokens that stood", stats.accepted);
  counter("replayssm_preemptions_total", "sequences put back for memory", stats.preemptions);
  counter("replayssm_cancelled_total", "requests cancelled", stats.cancelled);
  counter("replayssm_evicted_total", "snapshots dropped for memory", stats.evicted);
  counter("replayssm_corrupt_total", "snapshots refused by their checksum", stats.refused_corrupt);
  counter("replayssm_state_bytes_moved_total", "state traffic of replay", stats.state_bytes_moved);
  counter("replayssm_state_bytes_plain_total", "state traffic that the plain way would have",
          stats.state_bytes_plain);
  gauge("replayssm_memory_budget_bytes", "the byte budget", memory.budget);
  append_head(out, "replayssm_memory_bytes", "bytes taken by purpose", "gauge");
  for (const auto& [purpose, bytes] : memory.purposes) {
    out += concat("replayssm_memory_bytes{purpose=\"", escaped(purpose), "\"} ", bytes, "\n");
  }
  const std::lock_guard lock(mutex_);
  append_head(out, "replayssm_http_requests_total", "HTTP requests by route and status", "counter");
  for (const auto& [key, count] : requests_) {
    out += concat("replayssm_http_requests_total{route=\"", escaped(key.first), "\",status=\"",
                  key.second, "\"} ", count, "\n");
  }
  append_head(out, "replayssm_clients_left_total", "answers whose client left first", "counter");
  out += concat("replayssm_clients_left_total ", left_, "\n");
  first_token_.append(out, "replayssm_first_token_seconds", "time to the first text");
  duration_.append(out, "replayssm_request_seconds", "time of a whole answer");
  return out;
}

}  // namespace replayssm::server
