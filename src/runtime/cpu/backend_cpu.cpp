#include <cstring>
#include <fstream>

#include "model/cpu/forward_cpu.h"
#include "model/cpu/weights_cpu.h"
#include "runtime/backend.h"

namespace replayssm {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Model& model, const ops::Context& context, const PoolSizes& sizes,
             const ForwardLimits& limits)
      : model_(model),
        layers_(plan_layers_cpu(model, context.isa())),
        pool_(take_pool(layers_.sizes, sizes, state_)),
        loaded_(load_weights_cpu(model, weights_, &context.pool())),
        forward_(model, layers_, loaded_.weights, context, limits, scratch_) {}

  void launch(const ForwardBatch& batch, std::span<const DrawRow>) override {
    forward_.run(batch, pool_);
  }
  PassResult wait() override { return {forward_.logits()}; }
  bool overlaps() const override { return false; }
  void fold(const Row& row) override {
    const ForwardRow only{row, Phase::kStep, nullptr};
    forward_.run({{&only, 1}, {}, {}}, pool_);
  }
  bool draws() const override { return false; }
  const float* draft(std::span<const DraftRow> rows) override {
    forward_.draft(rows, pool_);
    return forward_.logits();
  }

  const StateParts& parts() const override { return pool_.parts; }
  void copy(std::span<const MemorySpan> from, std::span<const MemorySpan> to) override {
    copy_spans(from, to);
  }
  void poison(std::span<const MemorySpan> spans) override { fill_with_nan(spans); }
  void read(std::span<const MemorySpan> from, std::byte* to) const override {
    for (const MemorySpan& span : from) {
      std::memcpy(to, span.data, static_cast<size_t>(span.bytes));
      to += span.bytes;
    }
  }
  void write(const std::byte* from, std::span<const MemorySpan> to) override {
    for (const MemorySpan& span : to) {
      std::memcpy(span.data, from, static_cast<size_t>(span.bytes));
      from += span.bytes;
    }
  }

  std::vector<float> checkpoint_values(size_t layer, int32_t slot) const override {
    const Plan& plan = *layers_.recurrent[layer].plan;
    const Problem& p = plan.problem();
    const StateParts::Layer& parts = pool_.parts.layers[layer];
    std::vector<float> out(static_cast<size_t>(p.n_heads) *
                           static_cast<size_t>(p.value_dim * p.key_dim));
    const MemorySpan scale = parts.scale.at(slot);
    plan.export_checkpoint(parts.checkpoint.at(slot).data,
                           reinterpret_cast<const float*>(scale.data), out.data());
    return out;
  }
  std::vector<float> page_values(size_t layer, int32_t page) const override {
    const ops::KvShape& shape = layers_.kv[layer];
    const StateParts::Slots& pages = pool_.parts.kv[layer];
    const ops::KvPool pool{pages.data, pages.bytes};
    const int64_t dim = shape.head_dim;
    std::vector<float> out(static_cast<size_t>(ops::kKvPage * shape.n_kv_heads * 2 * dim));
    float* at = out.data();
    for (int64_t t = 0; t < ops::kKvPage; ++t) {
      for (int32_t head = 0; head < shape.n_kv_heads; ++head, at += 2 * dim) {
        ops::kv_read(shape, pool, &page, t, head, at, at + dim);
      }
    }
    return out;
  }
  MemorySpan embedding() const override {
    const ops::ConstMatrix& table = loaded_.weights.embedding;
    if (table.data == nullptr) return {};
    // Only read() takes it.
    return {const_cast<std::byte*>(static_cast<const std::byte*>(table.data)),
            table.rows * table.cols * dtype_bytes(table.dtype)};
  }

  int64_t state_bytes() const override { return state_.used(); }
  int64_t scratch_bytes() const override { return scratch_.used() + forward_.bytes(); }
  int64_t n_saturated() const override { return forward_.n_saturated(); }

 private:
  const Model& model_;
  CpuLayers layers_;
  HostArena state_, weights_, scratch_;
  StatePool pool_;
  LoadedWeightsCpu loaded_;
  ForwardCpu forward_;
};

// What Linux says could be taken without swapping; 0 if it does not say.
int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  int64_t kib = 0;
  while (file >> name >> kib >> unit) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const ops::Context& context) : context_(context) {}

  ModelMemory memory(const Model& model) const override {
    ModelMemory out = memory_of(plan_layers_cpu(model, context_.isa()).sizes);
    if (!model.path().empty()) out.weights = weight_bytes_cpu(model);
    return out;
  }
  int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const override {
    CountingArena arena(HostArena::kAlignment);
    const CpuLayers layers = plan_layers_cpu(model, context_.isa());
    const CpuWeights none;
    const ForwardCpu forward(model, layers, none, context_, limits, arena);
    return arena.used() + forward.bytes();
  }
  int64_t budget_bytes(int64_t weights) const override {
    return available_bytes() / 5 * 4 + weights;
  }
  std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                const ForwardLimits& limits) const override {
    return std::make_unique<CpuBackend>(model, context_, sizes, limits);
  }

 private:
  const ops::Context& context_;
};

}  // namespace

std::unique_ptr<Device> cpu_device(const ops::Context& context) {
  return std::make_unique<CpuDevice>(context);
}

}  // namespace replayssm
