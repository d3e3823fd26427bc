// One forward pass on the device over packed windows of many sequences: forward.h's, as launches on
// a stream. What it reads lies in device arrays; sizes are known when it is captured.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/cuda/device.h"
#include "model/cuda/branch_cuda.h"
#include "model/cuda/model_cuda.h"
#include "model/cuda/moe_cuda.h"
#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/context_cuda.h"
#include "replay/cuda/baselines/baselines.h"

namespace replayssm {

// What a launch is counted as where a step's time is split.
enum Part : uint32_t {
  kWeightsPart = 1,
  kStatePart = 2,
  kKvPart = 4,
  kRestPart = 8,
  kAllParts = 15
};

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

  // Ways other than kReplay, [n_step]; n_sweep is 0.
  const cuda::BaselineRow* state_rows = nullptr;
  const int32_t* snapshot_slots = nullptr;  // [n_step, longest], or null
  int32_t kept_set = 0;                     // that takes this window's inputs

  int64_t n_logits = 0;
  const int64_t* logit_tokens = nullptr;  // [n_logits]; null: the first n_logits tokens
  uint32_t parts = kAllParts;             // others are left out: only for timing
};

struct ForwardCudaLimits {
  int64_t max_tokens = 1;
  int64_t max_logits = 1;
};

// Owns no memory: scratch is the arena's. One thread at a time.
class ForwardCuda {
 public:
  // Takes scratch (with an arena that counts, run() must not be called). The model must outlive it.
  ForwardCuda(const ModelCuda& model, const ForwardCudaLimits& limits, DeviceArena& arena);

  // Once, before the first pass: what the scratch must hold. The context must outlive the last.
  void prepare(const ops::cuda::CudaContext& context);
  // Launches the pass; logits() hold its logits [n_logits, vocab] then. Commits nothing.
  void run(const ops::cuda::CudaContext& context, const PassCuda& pass, StatePoolCuda& pools);
  // kActivationReplay: the second pass over the states, once it is known which tokens stand.
  void rebuild(const ops::cuda::CudaContext& context, const PassCuda& pass,
               const cuda::BaselineRow* rows, StatePoolCuda& pools);

  float* logits() const { return logits_; }
  // Values so far that a 16-bit ring or checkpoint could not hold. Waits for the device.
  int64_t n_saturated() const;
  // Experts that the last pass chose, the mean over the mixtures; 0 without any. Waits.
  double experts_read() const;

 private:
  struct Call;

  void run_mixer(const Call& call, const Mamba2Spec& spec, const Mamba2WeightsCuda& weights);
  void run_mixer(const Call& call, const GdnSpec& spec, const GdnWeightsCuda& weights);
  void run_mixer(const Call& call, const AttentionSpec& spec, const AttentionWeightsCuda& weights);
  void run_mixer(const Call& call, const MlpSpec& spec, const MlpWeightsCuda& weights);
  void run_conv(const Call& call, const float* weight, const float* bias, ops::ConstMatrix in,
                ops::Matrix out);
  void run_recurrence(const Call& call, StepArgs args);
  cuda::BaselineArgs baseline_args(const StepArgs& args, const RecurrentPoolCuda& pool) const;

  const ModelCuda& model_;
  ForwardCudaLimits limits_;
  float* residual_ = nullptr;         // [max_tokens, hidden]
  void* normed_ = nullptr;            // bf16, likewise
  void* wide_ = nullptr;              // bf16, a mixer's first product
  void* conv_ = nullptr;              // bf16
  float* gates_ = nullptr;            // a recurrence's raw gates
  void* y_ = nullptr;                 // bf16, what enters a mixer's last product
  std::vector<double*> frequencies_;  // one a rope
  std::vector<float*> angles_;
  std::optional<MoeScratchCuda> moe_;
  void* branch_workspace_ = nullptr;
  std::unique_ptr<BranchCuda> branch_;  // with mixtures
  struct ExpertRows {
    int32_t n_experts;
    int32_t* first;  // run_moe()'s
  };
  std::vector<ExpertRows> expert_rows_;  // one a mixture
  void* last_normed_ = nullptr;          // bf16 [max_logits, hidden]
  float* logits_ = nullptr;
  int64_t* n_saturated_ = nullptr;
  std::vector<StepArgs> rebuild_args_;  // kActivationReplay: of each layer's last pass
};

}  // namespace replayssm
