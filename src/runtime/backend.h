// Where a model's passes run: the memory of its sequences and the forward pass, on one device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "model/forward.h"
#include "model/state.h"
#include "ops/context.h"

namespace replayssm {

class Backend {
 public:
  virtual ~Backend() = default;
  // As Forward::run; logits in host memory.
  virtual void run(const ForwardBatch& batch, float* logits) = 0;
  virtual int64_t state_bytes() const = 0;
  virtual int64_t scratch_bytes() const = 0;
  // Values so far that a 16-bit ring or checkpoint could not hold.
  virtual int64_t n_saturated() const = 0;
};

using BackendFactory = std::function<std::unique_ptr<Backend>(
    const Model& model, const PoolSizes& sizes, const ForwardLimits& limits)>;

// The context must outlive what the factory makes.
BackendFactory cpu_backend(const ops::Context& context);

}  // namespace replayssm
