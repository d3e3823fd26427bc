#include "runtime/backend.h"

#include <cstring>
#include <fstream>

namespace replayssm {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Model& model, const ops::Context& context, const PoolSizes& sizes,
             const ForwardLimits& limits)
      : model_(model),
        pool_(model, sizes),
        forward_(model, context, limits),
        logits_(static_cast<size_t>(limits.max_logits * model.spec().vocab)) {}

  PassResult run(const ForwardBatch& batch, std::span<const DrawRow>) override {
    forward_.run(batch, pool_, logits_.data());
    return {logits_.data(), nullptr};
  }

  const StateParts& parts() const override { return pool_.parts(); }
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
    const Plan& plan = *model_.recurrent()[layer].plan;
    const Problem& p = plan.problem();
    const StateParts::Layer& parts = pool_.parts().layers[layer];
    std::vector<float> out(static_cast<size_t>(p.n_heads) *
                           static_cast<size_t>(p.value_dim * p.key_dim));
    plan.export_checkpoint(parts.checkpoint.at(slot).data,
                           reinterpret_cast<const float*>(parts.scale.at(slot).data), out.data());
    return out;
  }
  std::vector<float> page_values(size_t layer, int32_t page) const override {
    const ops::KvShape& shape = model_.attention()[layer].kv;
    const StateParts::Slots& pages = pool_.parts().kv[layer];
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
    const Buffer& table = model_.weights().embedding;
    // Only read() takes it.
    return {const_cast<std::byte*>(table.as<std::byte>()), static_cast<int64_t>(table.bytes())};
  }

  int64_t state_bytes() const override { return pool_.bytes(); }
  int64_t scratch_bytes() const override {
    return forward_.bytes() + static_cast<int64_t>(logits_.size() * sizeof(float));
  }
  int64_t n_saturated() const override { return forward_.n_saturated(); }

 private:
  const Model& model_;
  StatePool pool_;
  Forward forward_;
  std::vector<float> logits_;
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

  std::shared_ptr<const Model> load(const std::string& folder,
                                    const ModelOptions& options) const override {
    return Model::load(folder, options);
  }
  ModelMemory memory(const Model& model) const override { return model.memory(); }
  int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const override {
    return Forward(model, context_, limits).bytes() +
           limits.max_logits * model.spec().vocab * int64_t{sizeof(float)};
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
