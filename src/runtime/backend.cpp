#include "runtime/backend.h"

namespace replayssm {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Model& model, const ops::Context& context, const PoolSizes& sizes,
             const ForwardLimits& limits)
      : pool_(model, sizes), forward_(model, context, limits) {}

  void run(const ForwardBatch& batch, float* logits) override {
    forward_.run(batch, pool_, logits);
  }
  int64_t state_bytes() const override { return pool_.bytes(); }
  int64_t scratch_bytes() const override { return forward_.bytes(); }
  int64_t n_saturated() const override { return forward_.n_saturated(); }

 private:
  StatePool pool_;
  Forward forward_;
};

}  // namespace

BackendFactory cpu_backend(const ops::Context& context) {
  return [&context](const Model& model, const PoolSizes& sizes, const ForwardLimits& limits) {
    return std::make_unique<CpuBackend>(model, context, sizes, limits);
  };
}

}  // namespace replayssm
