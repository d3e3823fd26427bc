// Where a model's passes run: the memory of its sequences and the forward pass, on one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/forward.h"
#include "model/model.h"
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

// Of a pass, a row of each a logit token; valid until the second launch after its own.
struct PassResult {
  const float* logits = nullptr;             // in host memory; rows that were drawn may be missing
  const ops::SampleResult* drawn = nullptr;  // null: this device leaves drawing to its caller
  // With `drawn`, of each row of the batch: drafts that equal what was drawn in their places, all
  // before them too. Rows that want no draws may hold anything.
  const int32_t* n_accepted = nullptr;
};

// A token id of a ForwardBatch that only the device knows: the token that the last pass with draws
// drew for its row `row`, after the last accepted draft. Only on a device that overlaps passes.
constexpr int32_t drawn_token(int32_t row) { return -1 - row; }

// One model's sequences on a device. Everything happens in the order of the calls.
class Backend {
 public:
  virtual ~Backend() = default;
  // Starts one pass (model/forward.h). `draws`: a row each a logit token, or none. On a device that
  // overlaps, two passes may be under way.
  virtual void launch(const ForwardBatch& batch, std::span<const DrawRow> draws) = 0;
  // Waits for the oldest pass under way.
  virtual PassResult wait() = 0;
  // launch() returns before the pass has ended.
  virtual bool overlaps() const = 0;
  // It draws the rows that are wanted.
  virtual bool draws() const = 0;
  // One pass of the model's drafting head, with no other pass under way; logits [rows.size(),
  // vocab] in host memory, valid until the next pass. Only of models with ModelOptions::mtp.
  virtual const float* draft(std::span<const DraftRow>) {
    REPLAYSSM_CHECK(false, "a drafting head on a device that refuses such models");
  }
  // launch() and wait(), with no other pass under way.
  PassResult run(const ForwardBatch& batch, std::span<const DrawRow> draws) {
    launch(batch, draws);
    return wait();
  }
  // Folds a row without tokens, after what is under way; done when it returns.
  virtual void fold(const Row& row) = 0;

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
  // What it costs there, by arithmetic; throws Error if the device cannot run it. A backend holds
  // the weights, the slots and pages that it is asked for, and at most scratch_bytes() more.
  virtual ModelMemory memory(const Model& model) const = 0;
  virtual int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const = 0;
  // What may be spent in all where nobody says how much, the weights of loaded models, so many
  // bytes, included.
  virtual int64_t budget_bytes(int64_t weights) const = 0;
  // Loads the weights. The model must outlive the backend. Throws Error if the memory does not hold
  // it, or the files are not the model's.
  virtual std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                        const ForwardLimits& limits) const = 0;
};

// The context must outlive the device and what it makes.
std::unique_ptr<Device> cpu_device(const ops::Context& context);

}  // namespace replayssm
