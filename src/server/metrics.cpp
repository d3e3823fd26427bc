#include "server/metrics.h"

#include <charconv>

namespace replayssm::server {
namespace {

// The shortest text that reads back the same.
std::string number(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return {text, end};
}

std::string escaped(const std::string& label) {
  std::string out;
  for (const char c : label) {
    if (c == '\\' || c == '"') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out;
}

// vLLM's names for how a choice ends.
const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      return "error";
    default:
      return "stop";
  }
}

class Text {
 public:
  explicit Text(const std::string& model) : model_(concat("model_name=\"", escaped(model), "\"")) {}

  void head(const char* name, const char* help, const char* type) {
    out_ += concat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  void value(const char* name, const char* help, const char* type, const std::string& v) {
    head(name, help, type);
    const bool vllm = std::string_view(name).starts_with("vllm:");
    out_ += concat(name, vllm ? "{" + model_ + "} " : " ", v, "\n");
  }
  void counter(const char* name, const char* help, int64_t v) {
    value(name, help, "counter", std::to_string(v));
  }
  void gauge(const char* name, const char* help, int64_t v) {
    value(name, help, "gauge", std::to_string(v));
  }
  void sample(const char* name, const std::string& labels, int64_t v) {
    out_ += concat(name, "{", labels, "} ", v, "\n");
  }
  void histogram(const char* name, const char* help, const Histogram& h) {
    head(name, help, "histogram");
    int64_t below = 0;
    for (size_t i = 0; i < h.counts().size(); ++i) {
      below += h.counts()[i];
      const auto& bounds = Histogram::kBounds;
      const std::string bound = i < bounds.size() ? number(bounds[i]) : "+Inf";
      out_ += concat(name, "_bucket{", model_, ",le=\"", bound, "\"} ", below, "\n");
    }
    out_ += concat(name, "_sum{", model_, "} ", number(h.sum()), "\n");
    out_ += concat(name, "_count{", model_, "} ", below, "\n");
  }
  const std::string& model() const { return model_; }
  std::string take() { return std::move(out_); }

 private:
  const std::string model_;
  std::string out_;
};

// The fuller of pages and slots, 0 to 1: of those that requests at work hold and the cache holds.
double used_part(const EngineStats& stats) {
  const auto part = [](int64_t all, int64_t free) {
    return all > 0 ? static_cast<double>(all - free) / static_cast<double>(all) : 0.0;
  };
  return std::max(part(stats.pages, stats.pages_free), part(stats.slots, stats.slots_free));
}

}  // namespace

void Metrics::request(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
}

void Metrics::answer(const RequestRecord& record) {
  const std::lock_guard lock(mutex_);
  if (record.cancelled) ++left_;
  warnings_ += std::ssize(record.warnings);
  for (size_t i = 0; i < kFinishReasons; ++i) finished_[i] += record.finished[i];
  if (record.first_seconds >= 0) first_token_.add(record.first_seconds);
  whole_.add(record.seconds);
  between_steps_.add(record.steps);
  queue_.add(record.usage.queue_seconds);
  prefill_.add(record.usage.prefill_seconds);
  decode_.add(record.usage.decode_seconds);
  if (record.new_tokens > 1) {
    per_token_.add(record.usage.decode_seconds / static_cast<double>(record.new_tokens - 1));
  }
}

std::string Metrics::text(const std::string& model, const EngineStats& stats,
                          const MemoryReport& memory) const {
  Text out(model);
  out.gauge("vllm:num_requests_running", "requests in the batch", stats.running);
  out.gauge("vllm:num_requests_waiting", "requests that wait", stats.queued);
  out.value("vllm:kv_cache_usage_perc", "part of KV pages or checkpoint slots in use, 0 to 1",
            "gauge", number(used_part(stats)));
  out.counter("vllm:prompt_tokens_total", "prompt tokens taken", stats.prompt_tokens);
  out.counter("vllm:generation_tokens_total", "tokens generated", stats.new_tokens);
  out.counter("vllm:prefix_cache_queries_total", "prompt tokens looked up in the prefix cache",
              stats.prompt_tokens);
  out.counter("vllm:prefix_cache_hits_total", "prompt tokens not computed again",
              stats.cached_tokens);
  out.counter("vllm:num_preemptions_total", "sequences put back for memory", stats.preemptions);
  out.counter("vllm:spec_decode_num_draft_tokens_total", "tokens proposed by drafters",
              stats.drafted);
  out.counter("vllm:spec_decode_num_accepted_tokens_total", "drafted tokens accepted",
              stats.accepted);
  out.gauge("replayssm_slots", "checkpoint slots", stats.slots);
  out.gauge("replayssm_slots_free", "checkpoint slots that are free", stats.slots_free);
  out.gauge("replayssm_rings", "replay rings", stats.rings);
  out.gauge("replayssm_rings_free", "replay rings that are free", stats.rings_free);
  out.gauge("replayssm_kv_pages", "KV pages", stats.pages);
  out.gauge("replayssm_kv_pages_free", "KV pages that are free", stats.pages_free);
  out.gauge("replayssm_snapshots", "state snapshots held", stats.snapshots);
  out.gauge("replayssm_snapshot_bytes", "bytes of the snapshots", stats.snapshot_bytes);
  out.gauge("replayssm_host_snapshots", "state snapshots in host memory", stats.host_snapshots);
  out.gauge("replayssm_host_snapshot_bytes", "bytes of those", stats.host_snapshot_bytes);
  out.counter("replayssm_steps_total", "passes of the model", stats.steps);
  out.counter("replayssm_cancelled_total", "requests cancelled", stats.cancelled);
  out.counter("replayssm_evicted_total", "snapshots dropped for memory", stats.evicted);
  out.counter("replayssm_corrupt_total", "snapshots refused by their checksum",
              stats.refused_corrupt);
  out.counter("replayssm_state_bytes_moved_total", "state traffic of replay",
              stats.state_bytes_moved);
  out.counter("replayssm_state_bytes_plain_total", "state traffic that plain state would have",
              stats.state_bytes_plain);
  out.gauge("replayssm_memory_budget_bytes", "the byte budget", memory.budget);
  out.head("replayssm_memory_bytes", "bytes taken by purpose", "gauge");
  for (const auto& [purpose, bytes] : memory.purposes) {
    out.sample("replayssm_memory_bytes", concat("purpose=\"", escaped(purpose), "\""), bytes);
  }
  const std::lock_guard lock(mutex_);
  out.head("replayssm_http_requests_total", "HTTP requests by route and status", "counter");
  for (const auto& [key, count] : requests_) {
    out.sample("replayssm_http_requests_total",
               concat("route=\"", escaped(key.first), "\",status=\"", key.second, "\""), count);
  }
  out.counter("replayssm_clients_left_total", "answers whose client left first", left_);
  out.counter("replayssm_warnings_total", "request fields ignored with a warning", warnings_);
  out.head("vllm:request_success_total", "choices by how they ended", "counter");
  std::map<std::string, int64_t> reasons;
  for (size_t i = 0; i < kFinishReasons; ++i) {
    reasons[reason_name(static_cast<FinishReason>(i))] += finished_[i];
  }
  for (const auto& [reason, count] : reasons) {
    out.sample("vllm:request_success_total",
               concat(out.model(), ",finished_reason=\"", reason, "\""), count);
  }
  out.histogram("vllm:time_to_first_token_seconds", "time to the first text", first_token_);
  out.histogram("vllm:inter_token_latency_seconds", "time between two steps of a choice",
                between_steps_);
  out.histogram("vllm:request_time_per_output_token_seconds",
                "decode time of a request over its tokens but the first", per_token_);
  out.histogram("vllm:e2e_request_latency_seconds", "time of a whole answer", whole_);
  out.histogram("vllm:request_queue_time_seconds", "time before the first step", queue_);
  out.histogram("vllm:request_prefill_time_seconds", "time in prefill", prefill_);
  out.histogram("vllm:request_decode_time_seconds", "time in decode", decode_);
  return out.take();
}

}  // namespace replayssm::server
