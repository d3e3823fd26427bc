// A model on the device: its plans, its weights, and the memory of its sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "model/cuda/weights_cuda.h"
#include "model/families/family.h"
#include "model/model.h"
#include "model/state.h"
#include "model/state_way.h"
#include "ops/cuda/attention_cuda.h"
#include "replay/cuda/conv_cuda.h"
#include "replay/cuda/kernels_cuda.h"

namespace replayssm {

struct ModelCudaOptions {
  StateWay way = StateWay::kReplay;
  int32_t max_window = 1;          // T_max
  DType checkpoint = DType::kF16;  // of the state, for the other ways
  int32_t interval = 16;           // of the grid
  // Of dummy weights' large products; gates, the embedding and the output head stay bf16.
  ops::cuda::WeightType weights = ops::cuda::WeightType::kBF16;
};

// Elements count per slot.
struct RecurrentLayerCuda {
  Problem problem;
  std::shared_ptr<const CudaPlan> plan;  // kReplay
  std::shared_ptr<const CudaConvPlan> conv;
  int64_t state_elements = 0;
  int64_t scale_elements = 0;
  int64_t value_row = 0, key_row = 0, gate_row = 0;  // of a ring row
  int64_t gates = 0;                                 // fp32 gate inputs of a token
};

struct AttentionLayerCuda {
  ops::cuda::KvShapeCuda kv;
  int32_t rope = -1;  // index into ModelCuda::ropes, -1: none
};

struct RopeCuda {
  int32_t rotary_dims = 0;
  double theta = 0;
};

struct ModelCuda {
  ModelDescription description;
  ModelCudaOptions options;
  std::vector<RecurrentLayerCuda> recurrent;
  std::vector<AttentionLayerCuda> attention;
  std::vector<RopeCuda> ropes;
  ModelWeightsCuda weights;

  const ModelSpec& spec() const { return description.spec; }
};

// All but weights. Throws Error if a layer has no kernel.
ModelCuda plan_model(const ModelDescription& description, const ModelCudaOptions& options);

struct PoolSizesCuda {
  int32_t state_slots = 1;
  int32_t ring_slots = 1;
  int32_t kv_pages = 1;
  int64_t kept_tokens = 0;  // of a pass; ways that keep a window's inputs
};

struct RecurrentPoolCuda {
  void* state = nullptr;  // [state_slots, state_elements]
  float* scale = nullptr;
  void *ring_value = nullptr, *ring_key = nullptr;  // [ring_slots, R, row]
  float* ring_gate = nullptr;
  void* conv = nullptr;
  // kActivationReplay, kJointAdvance: the recurrence's inputs, [sets, kept_tokens, ...]
  void* kept_conv = nullptr;
  float* kept_gates = nullptr;
};

struct StatePoolCuda {
  PoolSizesCuda sizes;
  std::vector<RecurrentPoolCuda> recurrent;
  std::vector<ops::KvPool> kv;
};

// Sets of inputs that a way keeps: this window's, and the window's before.
constexpr int kept_sets(StateWay way) {
  return way == StateWay::kJointAdvance ? 2 : way == StateWay::kActivationReplay ? 1 : 0;
}

StatePoolCuda take_pools(const ModelCuda& model, const PoolSizesCuda& sizes, DeviceArena& arena);

// As Model::memory() says them, but for the weights; and as state.h lists them, without conv rows
// beside checkpoints.
ModelMemory memory_of(const ModelCuda& model);
StateParts state_parts(const ModelCuda& model, const StatePoolCuda& pools);

// Finite values everywhere, as if sequences had run: for timing.
void fill_pools(const ModelCuda& model, const StatePoolCuda& pools, const Stream& stream);

}  // namespace replayssm
