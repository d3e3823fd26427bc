#include "bench/serve/forced_device.h"

#include <algorithm>
#include <vector>

namespace replayssm::bench {
namespace {

class ForcedBackend final : public Backend {
 public:
  ForcedBackend(std::unique_ptr<Backend> backend, const Acceptance& acceptance, int64_t vocab)
      : backend_(std::move(backend)), acceptance_(acceptance), vocab_(vocab) {}

  void launch(const ForwardBatch& batch, std::span<const DrawRow> draws) override {
    Pass& pass = passes_[n_launched_++ % 2];
    pass.tokens.assign(batch.tokens.begin(), batch.tokens.end());
    pass.logit_tokens.assign(batch.logit_tokens.begin(), batch.logit_tokens.end());
    pass.rows.clear();
    for (const ForwardRow& r : batch.rows) {
      pass.rows.push_back({r.row.token, r.phase == Phase::kStep ? r.row.n_tokens : 0});
    }
    backend_->launch(batch, draws);
  }

  PassResult wait() override {
    Pass& pass = passes_[n_waited_++ % 2];
    PassResult out = backend_->wait();
    if (out.drawn == nullptr) return out;
    pass.drawn.assign(out.drawn, out.drawn + pass.logit_tokens.size());
    pass.accepted.assign(out.n_accepted, out.n_accepted + pass.rows.size());
    size_t logit = 0;
    for (size_t i = 0; i < pass.rows.size(); ++i) {
      const auto [first, n_tokens] = pass.rows[i];
      while (logit < pass.logit_tokens.size() && pass.logit_tokens[logit] < first) ++logit;
      if (n_tokens > 1) force(pass, i, logit);
    }
    out.drawn = pass.drawn.data();
    out.n_accepted = pass.accepted.data();
    return out;
  }
  bool overlaps() const override { return backend_->overlaps(); }
  bool draws() const override { return backend_->draws(); }
  const float* draft(std::span<const DraftRow> rows) override { return backend_->draft(rows); }
  void fold(const Row& row) override { backend_->fold(row); }
  const StateParts& parts() const override { return backend_->parts(); }
  void copy(std::span<const MemorySpan> from, std::span<const MemorySpan> to) override {
    backend_->copy(from, to);
  }
  void poison(std::span<const MemorySpan> spans) override { backend_->poison(spans); }
  void read(std::span<const MemorySpan> from, std::byte* to) const override {
    backend_->read(from, to);
  }
  void write(const std::byte* from, std::span<const MemorySpan> to) override {
    backend_->write(from, to);
  }
  std::vector<float> checkpoint_values(size_t layer, int32_t slot) const override {
    return backend_->checkpoint_values(layer, slot);
  }
  std::vector<float> page_values(size_t layer, int32_t page) const override {
    return backend_->page_values(layer, page);
  }
  MemorySpan embedding() const override { return backend_->embedding(); }
  int64_t state_bytes() const override { return backend_->state_bytes(); }
  int64_t scratch_bytes() const override { return backend_->scratch_bytes(); }
  int64_t n_saturated() const override { return backend_->n_saturated(); }

 private:
  struct Pass {
    std::vector<int32_t> tokens;
    std::vector<int64_t> logit_tokens;
    std::vector<std::pair<int64_t, int32_t>> rows;  // first token, tokens of a step
    std::vector<ops::SampleResult> drawn;
    std::vector<int32_t> accepted;
  };

  // The drafts are drawn up to the accepted ones, and then something else.
  void force(Pass& pass, size_t row, size_t logit) const {
    const auto [first, n_tokens] = pass.rows[row];
    const int32_t accepted = std::clamp(
        acceptance_(static_cast<int32_t>(row), static_cast<int64_t>(n_waited_)), 0, n_tokens - 1);
    for (int32_t t = 0; t + 1 < n_tokens; ++t) {
      const int32_t draft = pass.tokens[static_cast<size_t>(first) + static_cast<size_t>(t) + 1];
      ops::SampleResult& drawn = pass.drawn[logit + static_cast<size_t>(t)];
      if (t < accepted) {
        drawn = {ops::SampleStatus::kOk, draft};
      } else if (drawn.token == draft) {
        drawn.token = static_cast<int32_t>((draft + 1) % vocab_);
      }
    }
    pass.accepted[row] = accepted;
  }

  std::unique_ptr<Backend> backend_;
  const Acceptance& acceptance_;
  int64_t vocab_;
  Pass passes_[2];
  uint64_t n_launched_ = 0, n_waited_ = 0;
};

class ForcedDevice final : public Device {
 public:
  ForcedDevice(std::unique_ptr<Device> device, Acceptance acceptance)
      : device_(std::move(device)), acceptance_(std::move(acceptance)) {}
  ModelMemory memory(const Model& model) const override { return device_->memory(model); }
  int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const override {
    return device_->scratch_bytes(model, limits);
  }
  int64_t budget_bytes(int64_t weights) const override { return device_->budget_bytes(weights); }
  std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                const ForwardLimits& limits) const override {
    return std::make_unique<ForcedBackend>(device_->make(model, sizes, limits), acceptance_,
                                           model.spec().vocab);
  }

 private:
  std::unique_ptr<Device> device_;
  Acceptance acceptance_;
};

}  // namespace

std::unique_ptr<Device> forced_device(std::unique_ptr<Device> device, Acceptance acceptance) {
  return std::make_unique<ForcedDevice>(std::move(device), std::move(acceptance));
}

}  // namespace replayssm::bench
