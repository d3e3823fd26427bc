// Forward passes on the CPU.
#pragma once

#include "model/cpu/ops_cpu.h"
#include "model/mtp_pass.h"

namespace replayssm {

// Checks a batch against the limits and the pools: a programmer's mistake ends here.
void check_batch(const ForwardBatch& batch, const Model& model, const ForwardLimits& limits,
                 const PoolSizes& sizes);

// Owns the scratch of a pass: run allocates nothing. One thread at a time.
class ForwardCpu {
 public:
  // All must outlive it; context.isa() must be the isa of the plans. The scratch is the arena's;
  // with an arena that counts, run() must not be called.
  ForwardCpu(const Model& model, const CpuLayers& layers, const CpuWeights& weights,
             const ops::Context& context, const ForwardLimits& limits, Arena& arena)
      : weights_(weights),
        limits_(limits),
        engine_(model, layers, context, limits, arena),
        scratch_(model, limits, arena),
        rows_(limits) {}

  // logits() [logit_tokens.size(), vocab] are valid until the next run. Commits nothing: the caller
  // moves n and c. Ops: OpsCpu, or a bench's own in its place.
  template <typename Ops = OpsCpu, typename... More>
  void run(const ForwardBatch& batch, StatePool& pool, More&&... more) {
    check_batch(batch, engine_.model, limits_, pool.sizes);
    rows_.sort(batch);
    Ops ops(engine_, batch, rows_, pool, std::forward<More>(more)...);
    const ModelSpec& spec = engine_.model.spec();
    run_forward(ops, spec, weights_, scratch_);
    if (spec.mtp && !batch.tokens.empty()) {
      run_mtp_entries(ops, spec, weights_, engine_.model.n_target_attention(), scratch_);
    }
  }
  // One pass of the drafting head, of sequences whose passes have brought it up to their rows'
  // positions; logits() [rows.size(), vocab] likewise.
  void draft(std::span<const DraftRow> rows, StatePool& pool);

  const float* logits() const { return scratch_.logits; }
  // Beside the arena's.
  int64_t bytes() const { return rows_.bytes(); }
  // Values so far that a 16-bit ring or checkpoint could not hold.
  int64_t n_saturated() const { return engine_.n_saturated; }

 private:
  const CpuWeights& weights_;
  ForwardLimits limits_;
  EngineCpu engine_;
  ForwardScratch scratch_;
  PassRowsCpu rows_;
};

}  // namespace replayssm
