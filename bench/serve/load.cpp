#include "bench/serve/load.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "core/error.h"
#include "core/json.h"

namespace replayssm::bench {
namespace {

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<int64_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Counts down as answers end.
struct Waiting {
  std::mutex mutex;
  std::condition_variable ended;
  size_t n = 0;
  std::string error;
};

class Watcher final : public Listener {
 public:
  Watcher(SeenAnswer& answer, Waiting& waiting) : answer_(answer), waiting_(waiting) {}

  size_t tokens(std::span<const TokenEvent> events) override {
    answer_.parts.push_back(now_seconds());
    answer_.n_tokens += std::ssize(events);
    return events.size();
  }
  void choice_finished(int32_t, FinishReason) override {}
  void finished(const RequestUsage& usage, const std::string& error) override {
    answer_.drafted = usage.drafted;
    answer_.accepted = usage.accepted;
    const std::lock_guard lock(waiting_.mutex);
    if (!error.empty()) waiting_.error = error;
    --waiting_.n;
    waiting_.ended.notify_all();
  }

 private:
  SeenAnswer& answer_;
  Waiting& waiting_;
};

}  // namespace

LoadFigures load_figures(const std::vector<SeenAnswer>& answers) {
  double begin = 0, end = 0, first_asked = answers.empty() ? 0 : answers[0].asked, last_part = 0;
  for (const SeenAnswer& answer : answers) {
    if (answer.parts.empty()) fail("an answer came without a token");
    begin = std::max(begin, answer.parts.front());
    end = end == 0 ? answer.parts.back() : std::min(end, answer.parts.back());
    first_asked = std::min(first_asked, answer.asked);
    last_part = std::max(last_part, answer.parts.back());
  }
  if (end <= begin) fail("the answers did not run side by side: ask for more tokens each");
  LoadFigures figures;
  std::vector<double> steps, firsts;
  double n_tokens = 0, n_parts = 0;
  for (const SeenAnswer& answer : answers) {
    const auto& parts = answer.parts;
    firsts.push_back((parts.front() - answer.asked) * 1e3);
    n_tokens += static_cast<double>(answer.n_tokens);
    n_parts += static_cast<double>(parts.size());
    figures.drafted += answer.drafted;
    figures.accepted += answer.accepted;
    const double tokens_a_part =
        static_cast<double>(answer.n_tokens) / static_cast<double>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i] <= begin || parts[i] > end) continue;
      figures.tokens_per_second += tokens_a_part;
      if (i > 0) steps.push_back((parts[i] - parts[i - 1]) * 1e3);
    }
  }
  figures.tokens_per_second /= end - begin;
  figures.total_tokens_per_second = n_tokens / (last_part - first_asked);
  figures.tokens_a_step = n_tokens / n_parts;
  figures.step_ms_p50 = quantile(steps, 0.5);
  figures.step_ms_p99 = quantile(steps, 0.99);
  figures.first_ms_p50 = quantile(firsts, 0.5);
  return figures;
}

std::vector<SeenAnswer> run_load(Engine& engine, const std::vector<LoadRequest>& requests) {
  std::vector<SeenAnswer> answers(requests.size());
  Waiting waiting;
  std::vector<RequestId> ids;
  const auto wait = [&] {
    std::unique_lock lock(waiting.mutex);
    waiting.ended.wait(lock, [&] { return waiting.n == 0; });
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    GenerationRequest request;
    request.prompt = requests[i].prompt;
    request.max_new_tokens = requests[i].new_tokens;
    request.sampling.temperature = 0;
    request.draft_tokens = requests[i].draft_tokens;
    {
      const std::lock_guard lock(waiting.mutex);
      ++waiting.n;
    }
    answers[i].asked = now_seconds();
    const auto refusal = engine.submit(
        std::move(request), std::make_shared<Watcher>(answers[i], waiting), &ids.emplace_back());
    if (!refusal) continue;
    {
      const std::lock_guard lock(waiting.mutex);
      --waiting.n;
    }
    ids.pop_back();
    for (const RequestId id : ids) engine.cancel(id);
    wait();
    fail("request ", i, ": ", refusal->field, " ", refusal->message);
  }
  wait();
  if (!waiting.error.empty()) fail("a request failed: ", waiting.error);
  return answers;
}

std::vector<SeenAnswer> run_load(const server::ServerAddress& server,
                                 const std::vector<LoadRequest>& requests) {
  std::vector<std::string> bodies;
  for (const LoadRequest& request : requests) {
    bodies.push_back(Json{{"prompt", request.prompt},
                          {"max_tokens", request.new_tokens},
                          {"temperature", 0},
                          {"ignore_eos", true},
                          {"draft", request.draft_tokens == 0 ? "none" : "default"},
                          {"draft_tokens", request.draft_tokens},
                          {"stream", true},
                          {"stream_options", {{"include_usage", true}}}}
                         .dump());
  }
  std::vector<SeenAnswer> answers;
  for (auto& seen : server::post_streams(server, "/v1/completions", bodies)) {
    SeenAnswer& answer = answers.emplace_back();
    answer.asked = seen.asked;
    seen.events.pop_back();  // [DONE]
    for (const auto& event : seen.events) {
      const Json json = parse_json(event.data);
      if (json.contains("error")) fail("a request failed: ", event.data);
      if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
        const auto& details = usage->at("completion_tokens_details");
        answer.n_tokens = usage->at("completion_tokens");
        answer.accepted = details.at("accepted_prediction_tokens");
        answer.drafted = answer.accepted + details.at("rejected_prediction_tokens").get<int64_t>();
      }
      const auto& choices = json.at("choices");
      if (!choices.empty() && !choices[0].at("text").get_ref<const std::string&>().empty()) {
        answer.parts.push_back(event.time);
      }
    }
  }
  return answers;
}

}  // namespace replayssm::bench
