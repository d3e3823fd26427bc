// A loaded model: spec, weights and the plans of its recurrent layers. Immutable, shared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/spec.h"
#include "model/weights.h"
#include "ops/attention.h"
#include "ops/rope.h"
#include "replay/kernels.h"
#include "replay/plain.h"

namespace replayssm {

// How recurrent layers keep their state. kPlain is the baseline: the state itself, read and written
// for every token, with a snapshot a token in a window; its dtype is `checkpoint`, there is no
// ring.
enum class StateMode : int32_t { kReplay, kPlain };

struct ModelOptions {
  StateMode state = StateMode::kReplay;
  int32_t interval = 16;   // B of the grid
  int32_t max_window = 8;  // T_max: the most positions past n that a step may touch; <= B
  // Absent: fp32 for a model stored in fp32, else fp16; Mamba-2's ring then holds bf16, as its
  // inputs come (docs/precision.md).
  std::optional<DType> checkpoint;
  std::optional<DType> ring;
  // fp32 or bf16; absent: fp32 if the files hold fp32, else bf16. Also the type of the KV cache.
  std::optional<DType> activation;
  Isa isa = best_isa();
};

// The plans and the sizes of a recurrent layer. Elements count per slot.
struct RecurrentLayer {
  std::shared_ptr<const Plan> plan;        // kReplay
  std::shared_ptr<const PlainPlan> plain;  // kPlain
  std::shared_ptr<const ConvPlan> conv;
  int64_t checkpoint_elements = 0;  // checkpoint dtype
  int64_t scale_elements = 0;       // fp32
  int64_t ring_value_row = 0;       // elements of a ring row; kPlain: none
  int64_t ring_key_row = 0;
  int64_t ring_gate_row = 0;
  int64_t conv_row = 0;
};

struct AttentionLayer {
  ops::KvShape kv;
  int32_t rope = -1;  // index into Model::ropes(), -1: none
};

// What a model costs, by purpose.
struct ModelMemory {
  int64_t weights = 0;
  int64_t checkpoint_slot = 0;  // all recurrent layers: one checkpoint of one sequence
  int64_t ring_slot = 0;        // one sequence's replay rings
  int64_t ring_token = 0;       // of these, one token's row
  int64_t conv_slot = 0;        // one sequence's conv rings
  int64_t conv_rows = 0;        // of these, the rows before the next token
  int64_t kv_page = 0;          // all attention layers: ops::kKvPage positions
  int64_t kv_token = 0;
};

class Model {
 public:
  static std::shared_ptr<const Model> load(const std::string& folder, const ModelOptions& options);
  // The shape alone, as if the files held `stored`: sizes and plans, no weights. Cannot be run.
  static std::shared_ptr<const Model> plan(const ModelSpec& spec, DType stored,
                                           const ModelOptions& options);
  // A folder's model without its weights, for a device that reads them itself.
  static std::shared_ptr<const Model> outline(const std::string& folder,
                                              const ModelOptions& options);

  // That it was read from; empty for plan().
  const std::string& folder() const { return folder_; }
  const ModelSpec& spec() const { return spec_; }
  const ModelOptions& options() const { return options_; }
  const ModelWeights& weights() const { return weights_; }
  DType activation() const { return activation_; }
  DType checkpoint() const { return checkpoint_; }
  DType ring() const { return ring_; }
  Grid grid() const { return grid_; }
  // In the order of the layers; StatePool and the forward pass count alike.
  std::span<const RecurrentLayer> recurrent() const { return recurrent_; }
  std::span<const AttentionLayer> attention() const { return attention_; }
  std::span<const ops::Rope> ropes() const { return ropes_; }
  ModelMemory memory() const;

 private:
  Model(const ModelSpec& spec, DType stored, const ModelOptions& options);
  static std::shared_ptr<const Model> read(const std::string& folder, const ModelOptions& options,
                                           bool weights);
  template <typename Recurrent>
  void add_mixer(const Recurrent& mixer, int layer);
  void add_mixer(const AttentionSpec& attention, int layer);
  void add_mixer(const MlpSpec&, int) {}
  void add_mixer(const MoeSpec&, int) {}

  std::string folder_;
  ModelSpec spec_;
  ModelOptions options_;
  DType activation_ = DType::kF32;
  DType checkpoint_ = DType::kF32;
  DType ring_ = DType::kF32;
  Grid grid_;
  ModelWeights weights_;
  std::vector<RecurrentLayer> recurrent_;
  std::vector<AttentionLayer> attention_;
  std::vector<ops::Rope> ropes_;
  std::vector<AttentionSpec> rope_specs_;  // of ropes_
};

}  // namespace replayssm
