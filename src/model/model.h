// What a model is once its options are chosen: the spec with the types, the grid and the problems
// of its layers. Plain data without weights, plans or state memory: those belong to a backend.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "model/spec.h"
#include "replay/conv.h"
#include "replay/step.h"

namespace replayssm {

struct ModelOptions {
  int32_t interval = 16;   // B of the grid
  int32_t max_window = 8;  // T_max: the most positions past n that a step may touch; <= B
  // Absent: fp32 for a model stored in fp32, else fp16; Mamba-2's ring then holds bf16, as its
  // inputs come (docs/precision.md).
  std::optional<DType> checkpoint;
  std::optional<DType> ring;
  // fp32 or bf16; absent: fp32 if the files hold fp32, else bf16. Also the type of the KV cache.
  std::optional<DType> activation;
  // The drafting head is loaded and kept in step: its cache is one more attention layer's.
  bool mtp = false;
};

struct RecurrentShape {
  Problem problem;
  ConvProblem conv;
};

struct AttentionShape {
  int32_t n_kv_heads = 1;
  int32_t head_dim = 64;
  int32_t rope = -1;  // index into Model::ropes(), -1: none
};

// What a rotary table is made of.
struct RopeShape {
  int32_t rotary_dims = 0;
  double theta = 10000.0;
  ops::RopeScaling scaling;
  bool operator==(const RopeShape&) const = default;
};

class Model {
 public:
  // Reads the configuration and the headers of a folder or GGUF file (model_source.h). Throws
  // Error, too, if a drafting head is asked for and there is none.
  static std::shared_ptr<const Model> load(const std::string& path, const ModelOptions& options);
  // The shape alone, as if the files held `stored`.
  static std::shared_ptr<const Model> of(const ModelDescription& description, DType stored,
                                         const ModelOptions& options);

  // That it was read from; empty for of().
  const std::string& path() const { return path_; }
  const ModelDescription& description() const { return description_; }
  const ModelSpec& spec() const { return description_.spec; }
  const ModelOptions& options() const { return options_; }
  DType stored() const { return stored_; }  // of the embedding table in the files
  DType activation() const { return activation_; }
  DType checkpoint() const { return checkpoint_; }
  DType ring() const { return ring_; }
  Grid grid() const { return grid_; }
  // In the order of the layers, the drafting head's attention last; plans, pools and the forward
  // pass count alike.
  std::span<const RecurrentShape> recurrent() const { return recurrent_; }
  std::span<const AttentionShape> attention() const { return attention_; }
  std::span<const RopeShape> ropes() const { return ropes_; }
  // Attention layers of the model proper: the head's is the one after them.
  size_t n_target_attention() const { return attention_.size() - (spec().mtp ? 1 : 0); }

 private:
  Model(ModelDescription description, DType stored, const ModelOptions& options);
  template <typename Recurrent>
  void add_mixer(const Recurrent& mixer);
  void add_mixer(const AttentionSpec& attention);
  void add_mixer(const MlpSpec&) {}
  void add_mixer(const MoeSpec&) {}

  std::string path_;
  ModelDescription description_;
  ModelOptions options_;
  DType stored_ = DType::kF32;
  DType activation_ = DType::kF32;
  DType checkpoint_ = DType::kF32;
  DType ring_ = DType::kF32;
  Grid grid_;
  std::vector<RecurrentShape> recurrent_;
  std::vector<AttentionShape> attention_;
  std::vector<RopeShape> ropes_;
};

}  // namespace replayssm
