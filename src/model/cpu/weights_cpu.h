// A model's weights in host memory, packed for the CPU's products.
#pragma once

#include <cstdint>

#include "core/arena.h"
#include "core/thread_pool.h"
#include "model/cpu/types_cpu.h"
#include "model/load_progress.h"
#include "model/weight_files.h"

namespace replayssm {

// A sink of load_weights.h. FP8 is widened as it is packed.
class CpuWeightSink {
 public:
  using Types = CpuTypes;

  // Files and arena must outlive what is taken. total: of bytes(), for the progress line; 0:
  // nothing is read but types and shapes.
  CpuWeightSink(const Model& model, WeightFiles& files, Arena& arena, int64_t total,
                ThreadPool* pool);

  bool has(const std::string& name) const { return files_.has(name); }
  bool is_tiled(const std::string& name) const { return files_.is_tiled(name); }
  ops::Linear linear(std::span<const MatrixPart> parts, LinearUse use);
  template <typename In, typename Down>
  CpuTypes::Experts experts(int32_t n_experts, const In& in, const Down& down) {
    CpuTypes::Experts out;
    for (int64_t e = 0; e < n_experts; ++e) {
      out.push_back({linear(in(e), LinearUse::kLayer), linear(down(e), LinearUse::kLayer)});
    }
    return out;
  }
  const float* vector(const std::string& name, int64_t n, VectorKind kind, int32_t width = 1);
  void tables(const ModelDescription& model, CpuWeights& out);

  // Of all that was taken, matrices included.
  int64_t bytes() const { return matrix_bytes_ + arena_.used(); }

 private:
  DType packed_dtype(std::span<const MatrixPart> parts) const;
  ops::Linear stacked(std::span<const MatrixPart> parts);
  void count(int64_t bytes);

  const Model& model_;
  WeightFiles& files_;
  Arena& arena_;
  bool counts_;
  ThreadPool* pool_;
  LoadProgress progress_;
  int64_t matrix_bytes_ = 0;
};

// Bytes that load_weights_cpu() takes, from the headers of the files alone.
int64_t weight_bytes_cpu(const Model& model);

struct LoadedWeightsCpu {
  CpuWeights weights;
  int64_t bytes = 0;
  int64_t n_parameters = 0;          // elements of the tensors in use
  std::vector<std::string> skipped;  // tensors of the files that are not run
};
// Vectors and tables are the arena's; few bits are packed on `pool` if there is one. Throws Error
// that names file and tensor, or says that this machine has too little memory.
LoadedWeightsCpu load_weights_cpu(const Model& model, Arena& arena, ThreadPool* pool = nullptr);

}  // namespace replayssm
