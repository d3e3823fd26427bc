// The device's ops of a forward pass (forward_pass.h), as launches on a stream. What a pass reads
// lies in device arrays; sizes are known when it is captured.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/cuda/device.h"
#include "model/cuda/branch_cuda.h"
#include "model/cuda/types_cuda.h"
#include "model/mixers/attention.h"
#include "model/mixers/moe.h"
#include "ops/cuda/context_cuda.h"
#include "ops/cuda/elementwise_cuda.h"
#include "ops/cuda/norm_cuda.h"

namespace replayssm {

struct PassCuda {
  int64_t n_tokens = 0;  // packed; those of no row are computed and used by nobody
  // Steps, then sweeps. Rows with read_slot -1 are skipped.
  int32_t n_step = 0;
  int32_t n_sweep = 0;
  bool single = false;        // no step's window has more than one token
  int32_t longest = 0;        // no window has more tokens
  int64_t max_positions = 0;  // no window ends beyond
  const Row* rows = nullptr;
  const int32_t* tokens = nullptr;     // [n_tokens] ids
  const int64_t* positions = nullptr;  // [n_tokens]
  // [n_step + n_sweep], as AttentionRowsCuda has them.
  const int64_t* start = nullptr;
  const int32_t* row_tokens = nullptr;
  const int64_t* first_token = nullptr;
  const int32_t* pages = nullptr;
  int64_t pages_stride = 0;

  int64_t n_logits = 0;
  const int64_t* logit_tokens = nullptr;  // [n_logits]
};

// What passes share. The memory is the arena's; with one that counts, nothing may run.
class EngineCuda {
 public:
  EngineCuda(const Model& model, const CudaLayers& layers, Arena& arena);
  // Once, before the first pass. The context must outlive the last.
  void prepare(const ops::cuda::CudaContext& context);
  // Values so far that a 16-bit ring or checkpoint could not hold. Waits for the device.
  int64_t n_saturated() const;

  const Model& model;
  const CudaLayers& layers;
  std::vector<double*> frequencies;    // one a rope
  std::unique_ptr<BranchCuda> branch;  // with mixtures
  int64_t* saturated = nullptr;

 private:
  void* branch_workspace_ = nullptr;
};

class OpsCuda {
 public:
  using Types = CudaTypes;

  OpsCuda(const EngineCuda& engine, const ops::cuda::CudaContext& context, const PassCuda& pass,
          const StatePool& pool)
      : engine_(engine), context_(&context), pass_(pass), pool_(pool) {}

  int64_t n_tokens() const { return pass_.n_tokens; }
  int64_t n_logits() const { return pass_.n_logits; }
  static constexpr DType activation() { return DType::kBF16; }
  int32_t rope_of(size_t layer) const { return engine_.model.attention()[layer].rope; }
  static int64_t n_outputs(const ops::cuda::LinearCuda& w) { return w.n_out; }

  void embed(const CudaWeights& weights, ops::Matrix residual) const {
    ops::cuda::embed(context(), weights.embedding, pass_.tokens, residual);
  }
  void rope_angles(size_t rope, float* table) const;
  void rms_norm(ops::ConstMatrix x, ops::NormWeight weight, float eps, ops::Matrix y) const {
    ops::cuda::rms_norm(context(), x, weight, eps, y);
  }
  void last_norm(ops::ConstMatrix residual, ops::NormWeight weight, float eps,
                 ops::Matrix y) const {
    ops::cuda::rms_norm(context(), residual, weight, eps, y, pass_.logit_tokens);
  }
  void gated_norm(const ops::GatedNorm& norm, ops::ConstMatrix y, ops::ConstMatrix z,
                  ops::Matrix out) const {
    ops::cuda::gated_norm(context(), norm, y, z, out);
  }
  void linear(const ops::cuda::LinearCuda& w, ops::ConstMatrix x, ops::Matrix y) const {
    ops::cuda::linear(context(), w, x, y);
  }
  void linear_add(const ops::cuda::LinearCuda& w, ops::ConstMatrix x, ops::Matrix residual) const {
    ops::cuda::linear(context(), w, x, residual, /*accumulate=*/true);
  }
  void copy(ops::ConstMatrix x, ops::Matrix y) const { ops::cuda::copy(context(), x, y); }
  void sigmoid_mul(ops::ConstHeads x, ops::ConstHeads gate, ops::Heads y) const {
    ops::cuda::sigmoid_mul(context(), x, gate, y);
  }

  void recurrence_inputs(size_t, ops::Matrix&, ops::Matrix&) const {}  // stay where they are
  void conv(size_t layer, const float* weight, const float* bias, ops::ConstMatrix x,
            ops::Matrix y) const;
  void recurrence(size_t layer, StepArgs args) const;
  void attend(size_t layer, const AttentionPrologue& prologue, float scale, ops::Heads q,
              ops::Heads k, ops::Heads v, ops::Heads y) const;

  void activated_linear(MlpKind kind, const ops::cuda::LinearCuda& w, ops::Matrix inner,
                        ops::Matrix y, ops::Matrix out) const {
    activated(kind, w, inner, y, out, /*accumulate=*/false);
  }
  void activated_linear_add(MlpKind kind, const ops::cuda::LinearCuda& w, ops::Matrix inner,
                            ops::Matrix y, ops::Matrix residual) const {
    activated(kind, w, inner, y, residual, /*accumulate=*/true);
  }

  template <typename Work>
  void beside(const Work& work) const {
    engine_.branch->fork();
    OpsCuda side = *this;
    side.context_ = &engine_.branch->context();
    work(side);
  }
  void join() const { engine_.branch->join(); }
  void route(const ops::Router& router, ops::ConstMatrix logits, int32_t* experts,
             float* weights) const {
    ops::cuda::route(context(), router, logits, experts, weights);
  }
  void run_experts(const MoeSpec& spec, const CudaTypes::Experts& experts, ops::ConstMatrix x,
                   const MoeScratch& scratch) const;
  void sum_experts(const MoeSpec& spec, const MoeScratch& scratch, ops::Matrix y) const {
    ops::cuda::sum_rows(context(), scratch.out, scratch.row, scratch.weights, spec.top_k, y);
  }
  bool sum_experts_add(const MoeSpec& spec, const MoeScratch& scratch, const SharedExpert& shared,
                       ops::Matrix residual, const NextNorm& then) const;
  bool linear_shared_add(const ops::cuda::LinearCuda& w, ops::ConstMatrix x,
                         const SharedExpert& shared, ops::Matrix residual,
                         const NextNorm& then) const;

 protected:
  const ops::cuda::CudaContext& context() const { return *context_; }
  void activated(MlpKind kind, const ops::cuda::LinearCuda& w, ops::Matrix inner, ops::Matrix y,
                 ops::Matrix out, bool accumulate) const;

  const EngineCuda& engine_;
  const ops::cuda::CudaContext* context_;
  const PassCuda& pass_;
  const StatePool& pool_;
};

}  // namespace replayssm
