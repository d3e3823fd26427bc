#include "bench/serve/engine_cells.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "bench/serve/forced_device.h"
#include "core/error.h"

namespace replayssm::bench {
namespace {

constexpr int64_t kSpread = 128;  // of positions around the context; a multiple of the grid
constexpr int kWarmSteps = 20;
constexpr int64_t kChunk = 2048;  // of prompts in a step

double now_ms() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
}

// All sequences of a batch: times of the first one's steps, once every one of them decodes.
struct Batch {
  explicit Batch(int32_t size_in) : size(size_in), n_prefilling(size), n_running(size) {}
  const int32_t size;
  std::atomic<int32_t> n_prefilling;
  std::atomic<int64_t> n_tokens = 0;  // of all sequences, prompts included
  std::mutex mutex;
  std::condition_variable changed;
  int32_t n_running;
  std::vector<double> times;     // ms
  std::vector<double> contexts;  // positions, the mean over the sequences; after the warm steps
  size_t wanted = 0, least = 0;
  double ms = 0;  // after which the least are enough
  bool enough() const {
    return times.size() >= wanted || (times.size() >= least && times.back() > times[0] + ms);
  }
};

class BatchListener final : public Listener {
 public:
  BatchListener(Batch& batch, bool first) : batch_(batch), first_(first) {}

  size_t tokens(std::span<const TokenEvent> events) override {
    if (!decodes_) {
      decodes_ = true;
      --batch_.n_prefilling;
    }
    batch_.n_tokens += std::ssize(events);
    if (first_ && batch_.n_prefilling == 0) {
      const std::lock_guard lock(batch_.mutex);
      batch_.times.push_back(now_ms());
      if (batch_.times.size() > kWarmSteps) {
        batch_.contexts.push_back(static_cast<double>(batch_.n_tokens) / batch_.size);
      }
      if (batch_.enough()) batch_.changed.notify_all();
    }
    return events.size();
  }
  void choice_finished(int32_t, FinishReason) override {}
  void finished(const RequestUsage&, const std::string& error) override {
    const std::lock_guard lock(batch_.mutex);
    error_ = error;
    --batch_.n_running;
    batch_.changed.notify_all();
  }

 private:
  Batch& batch_;
  bool first_;
  bool decodes_ = false;
  std::string error_;
};

}  // namespace

void measure_engine(const std::shared_ptr<const Model>& model, std::unique_ptr<Device> device,
                    const ops::Context& context, const EngineCells& cells,
                    const std::function<void(const EngineTimes&)>& done) {
  const int32_t most = cells.batches.back();
  const int n_steps = kWarmSteps + cells.steps;
  const auto growth = static_cast<int64_t>(std::ceil(n_steps * cells.accepted));
  // Sequences that wait for the last one's prompt go on decoding meanwhile: their prompts are
  // shorter by what they gain.
  const auto gained = [&](int64_t prompt_tokens_after) {
    return static_cast<int64_t>(static_cast<double>(prompt_tokens_after / kChunk) * cells.accepted);
  };
  EngineOptions options;
  options.max_sequences = most;
  options.max_positions = cells.context + kSpread + growth + 64;
  options.max_queued = most;
  options.chunk_tokens = kChunk;
  options.prefix_cache = false;
  options.adaptive_drafts = false;
  options.draft_tokens = cells.window - 1;
  options.test_hooks = cells.window > 1;  // scripted drafts
  const auto forced = forced_device(std::move(device), [&](int32_t row, int64_t pass) {
    // Whole tokens whose mean is the rate, staggered over the sequences.
    const double at = static_cast<double>(pass + row) * cells.accepted;
    return static_cast<int32_t>(std::floor(at + cells.accepted) - std::floor(at)) - 1;
  });
  const auto engine = make_engine(model, *forced, context, options);
  const auto vocab = static_cast<int32_t>(model->spec().vocab);
  for (const int32_t size : cells.batches) {
    Batch batch(size);
    batch.wanted = static_cast<size_t>(n_steps) + 1;
    batch.least = std::min(batch.wanted, static_cast<size_t>(kWarmSteps + cells.least_steps) + 1);
    batch.ms = 1e3 * cells.seconds;
    std::vector<RequestId> ids(static_cast<size_t>(size));
    std::vector<int64_t> lengths(ids.size());
    int64_t after = 0;  // prompt tokens of the sequences behind
    for (int32_t i = size - 1; i >= 0; --i) {
      const int64_t start = cells.context - growth / 2 - kSpread / 2 + 5 * int64_t{i} % kSpread;
      lengths[static_cast<size_t>(i)] = std::max<int64_t>(1, start - gained(after));
      after += lengths[static_cast<size_t>(i)];
    }
    for (int32_t i = 0; i < size; ++i) {
      GenerationRequest request;
      const int64_t length = lengths[static_cast<size_t>(i)];
      for (int64_t t = 0; t < length; ++t) {
        request.prompt.push_back(static_cast<int32_t>((7919 * t + 104729 * i + 11) % vocab));
      }
      request.max_new_tokens = options.max_positions - length;
      batch.n_tokens += length;
      if (cells.window > 1) {
        std::vector<int32_t> drafts;
        for (int32_t t = 1; t < cells.window; ++t) drafts.push_back((31 * t + i) % vocab);
        request.scripted_drafts.assign(static_cast<size_t>(request.max_new_tokens), drafts);
      }
      const auto refusal =
          engine->submit(std::move(request), std::make_shared<BatchListener>(batch, i == 0),
                         &ids[static_cast<size_t>(i)]);
      if (refusal) fail(refusal->field, ": ", refusal->message);
    }
    std::unique_lock lock(batch.mutex);
    batch.changed.wait(lock, [&] { return batch.enough() || batch.n_running < size; });
    EngineTimes out;
    out.batch = size;
    for (const double at : batch.contexts) {
      out.context += at / static_cast<double>(batch.contexts.size());
    }
    for (size_t i = kWarmSteps + 1; i < batch.times.size(); ++i) {
      out.step_ms.push_back(batch.times[i] - batch.times[i - 1]);
    }
    const bool whole = batch.n_running == size;
    lock.unlock();
    for (const RequestId id : ids) engine->cancel(id);
    lock.lock();
    batch.changed.wait(lock, [&] { return batch.n_running == 0; });
    if (!whole || out.step_ms.empty()) fail("a sequence of the batch of ", size, " ended early");
    done(out);
  }
}

}  // namespace replayssm::bench
