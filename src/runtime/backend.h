// Where a model's passes run: the memory of its sequences and the forward pass, on one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/forward.h"
#include "model/state.h"
#include "ops/context.h"
#include "ops/sample.h"

namespace replayssm {

// How the token after a row of logits is drawn, if it needs nothing but these.
struct DrawRow {
  bool wanted = false;
  ops::SamplerParams params;
  int64_t position = 0;
};

// Of a pass, a row of each a logit token; valid until the next pass.
struct PassResult {
  const float* logits = nullptr;             // in host memory; rows that were drawn may be missing
  const ops::SampleResult* drawn = nullptr;  // null: this device leaves drawing to its caller
};

// One model's sequences on a device. Everything happens in the order of the calls.
class Backend {
 public:
  virtual ~Backend() = default;
  // As Forward::run. `draws`: a row each a logit token, or none.
  virtual PassResult run(const ForwardBatch& batch, std::span<const DrawRow> draws) = 0;

  // Addresses are the device's: they are for the calls below.
  virtual const StateParts& parts() const = 0;
  // Span i to span i, of the same size; no span of `to` meets another of the call.
  virtual void copy(std::span<const MemorySpan> from, std::span<const MemorySpan> to) = 0;
  // Fills with NaN, so that a read of what nobody wrote shows.
  virtual void poison(std::span<const MemorySpan> spans) = 0;
  // To and from host memory, the spans' bytes one after another.
  virtual void read(std::span<const MemorySpan> from, std::byte* to) const = 0;
  virtual void write(const std::byte* from, std::span<const MemorySpan> to) = 0;

  // Whatever the layouts are: a recurrent layer's checkpoint, fp32 [head, value, key]; the k and v
  // of an attention layer's page, fp32 [kKvPage, n_kv_heads, 2, head_dim].
  virtual std::vector<float> checkpoint_values(size_t layer, int32_t slot) const = 0;
  virtual std::vector<float> page_values(size_t layer, int32_t page) const = 0;
  // The embedding table, for read(); empty if the output head's is read.
  virtual MemorySpan embedding() const = 0;

  virtual int64_t state_bytes() const = 0;
  virtual int64_t scratch_bytes() const = 0;
  // Values so far that a 16-bit ring or checkpoint could not hold.
  virtual int64_t n_saturated() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  // A model as make() takes it.
  virtual std::shared_ptr<const Model> load(const std::string& folder,
                                            const ModelOptions& options) const = 0;
  // What it costs there. A backend holds the weights, the slots and pages that it is asked for,
  // and at most scratch_bytes() more.
  virtual ModelMemory memory(const Model& model) const = 0;
  virtual int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const = 0;
  // What may be spent in all where nobody says how much, the weights of loaded models, so many
  // bytes, included.
  virtual int64_t budget_bytes(int64_t weights) const = 0;
  // The model must outlive the backend. Throws Error if the memory does not hold it.
  virtual std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                        const ForwardLimits& limits) const = 0;
};

// The context must outlive the device and what it makes.
std::unique_ptr<Device> cpu_device(const ops::Context& context);

}  // namespace replayssm
