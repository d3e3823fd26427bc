// The CPU behind the face of a device that overlaps passes and draws: a pass's tokens may be those
// that the pass before drew, and nothing is told before wait(). The engine's suites run on it as on
// a GPU.
#include <deque>

#include "core/error.h"
#include "test_device.h"

namespace replayssm {
namespace {

class OverlapBackend final : public Backend {
 public:
  OverlapBackend(std::unique_ptr<Backend> cpu, const ops::Context& context, int64_t vocab)
      : cpu_(std::move(cpu)), sampler_(context, vocab), vocab_(vocab) {}

  void launch(const ForwardBatch& batch, std::span<const DrawRow> draws) override {
    REPLAYSSM_CHECK(flights_.size() < 2, "a third pass at once");
    std::vector<int32_t> tokens(batch.tokens.begin(), batch.tokens.end());
    for (int32_t& id : tokens) {
      if (id < 0) id = next_.at(static_cast<size_t>(-1 - id));
    }
    const PassResult pass = cpu_->run({batch.rows, tokens, batch.logit_tokens}, {});
    Flight& flight = flights_.emplace_back();
    const auto n_logits = batch.logit_tokens.size();
    flight.logits.assign(pass.logits, pass.logits + static_cast<int64_t>(n_logits) * vocab_);
    flight.drawn.resize(draws.size());
    for (size_t i = 0; i < draws.size(); ++i) {
      float* row = flight.logits.data() + static_cast<int64_t>(i) * vocab_;
      if (!draws[i].wanted) continue;
      flight.drawn[i] = sampler_.sample(row, draws[i].params, draws[i].position);
      std::fill(row, row + vocab_, 0.0f);  // a row that was drawn may be missing
    }
    flight.accepted.assign(batch.rows.size(), 0);
    if (draws.empty()) return;
    next_.assign(batch.rows.size(), -1);
    size_t logit = 0;
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const Row& row = batch.rows[i].row;
      const size_t first = logit;
      while (logit < n_logits && batch.logit_tokens[logit] < row.token + row.n_tokens) ++logit;
      if (logit == first) continue;
      size_t at = first;
      while (at + 1 < logit &&
             tokens[static_cast<size_t>(batch.logit_tokens[at + 1])] == flight.drawn[at].token) {
        ++at;
      }
      flight.accepted[i] = static_cast<int32_t>(at - first);
      next_[i] = flight.drawn[at].token;
    }
  }
  PassResult wait() override {
    REPLAYSSM_CHECK(!flights_.empty(), "no pass is under way");
    last_ = std::move(flights_.front());
    flights_.pop_front();
    return {last_.logits.data(), last_.drawn.data(), last_.accepted.data()};
  }
  bool overlaps() const override { return true; }
  void fold(const Row& row) override { cpu_->fold(row); }
  bool draws() const override { return true; }
  const float* draft(std::span<const DraftRow> rows) override { return cpu_->draft(rows); }

  const StateParts& parts() const override { return cpu_->parts(); }
  void copy(std::span<const MemorySpan> from, std::span<const MemorySpan> to) override {
    cpu_->copy(from, to);
  }
  void poison(std::span<const MemorySpan> spans) override { cpu_->poison(spans); }
  void read(std::span<const MemorySpan> from, std::byte* to) const override {
    cpu_->read(from, to);
  }
  void write(const std::byte* from, std::span<const MemorySpan> to) override {
    cpu_->write(from, to);
  }
  std::vector<float> checkpoint_values(size_t layer, int32_t slot) const override {
    return cpu_->checkpoint_values(layer, slot);
  }
  std::vector<float> page_values(size_t layer, int32_t page) const override {
    return cpu_->page_values(layer, page);
  }
  MemorySpan embedding() const override { return cpu_->embedding(); }
  int64_t state_bytes() const override { return cpu_->state_bytes(); }
  int64_t scratch_bytes() const override { return cpu_->scratch_bytes(); }
  int64_t n_saturated() const override { return cpu_->n_saturated(); }

 private:
  struct Flight {
    std::vector<float> logits;
    std::vector<ops::SampleResult> drawn;
    std::vector<int32_t> accepted;
  };
  std::unique_ptr<Backend> cpu_;
  ops::Sampler sampler_;
  int64_t vocab_;
  std::deque<Flight> flights_;
  Flight last_;
  std::vector<int32_t> next_;
};

class OverlapDevice final : public Device {
 public:
  explicit OverlapDevice(const ops::Context& context)
      : cpu_(cpu_device(context)), context_(context) {}
  ModelMemory memory(const Model& model) const override { return cpu_->memory(model); }
  int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const override {
    return cpu_->scratch_bytes(model, limits);
  }
  int64_t budget_bytes(int64_t weights) const override { return cpu_->budget_bytes(weights); }
  std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                const ForwardLimits& limits) const override {
    return std::make_unique<OverlapBackend>(cpu_->make(model, sizes, limits), context_,
                                            model.spec().vocab);
  }

 private:
  std::unique_ptr<Device> cpu_;
  const ops::Context& context_;
};

}  // namespace

std::unique_ptr<Device> open_device(const ops::Context& context) {
  return std::make_unique<OverlapDevice>(context);
}

std::vector<int32_t> device_intervals() { return {8, 16, 32}; }

int64_t device_overhead_bytes() { return 0; }

}  // namespace replayssm
