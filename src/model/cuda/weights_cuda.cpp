#include "model/cuda/weights_cuda.h"

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/load_weights.h"
#include "model/mixers/moe.h"

namespace replayssm {
namespace {

using ops::cuda::LinearCuda;
using ops::cuda::WeightType;

constexpr int64_t kFp8Multiple = 16;  // of inputs and outputs, which FP8 products need

// A sink of load_weights.h.
class CudaWeightSink {
 public:
  using Types = CudaTypes;

  CudaWeightSink(Arena& arena, WeightSource& source) : arena_(arena), source_(source) {}

  bool has(const std::string& name) const { return source_.has(name); }
  // Few bits come widened, in the model's order.
  static bool is_tiled(const std::string&) { return false; }

  LinearCuda linear(std::span<const MatrixPart> parts, LinearUse use) {
    LinearCuda out;
    out.type = use == LinearUse::kLayer ? type_of(parts) : WeightType::kBF16;
    out.n_in = parts[0].cols;
    for (const MatrixPart& part : parts) out.n_out += part.n_rows;
    const int64_t there = out.n_out;
    if (use == LinearUse::kRouter) {
      out.n_out = (there + kPaddedOutputs - 1) / kPaddedOutputs * kPaddedOutputs;
    }
    char* to = take_weight(out, 1);
    float* scales = take_scales(out, 1);
    fill(parts, out.type, to, scales);
    if (to != nullptr && out.n_out > there) {
      const int64_t begin = weight_bytes(out.type, there, out.n_in);
      const int64_t end = weight_bytes(out.type, out.n_out, out.n_in);
      check_cuda(cudaMemset(to + begin, 0, static_cast<size_t>(end - begin)), "cudaMemset");
    }
    out.weight = to;
    out.scales = scales;
    return out;
  }

  template <typename In, typename Down>
  CudaTypes::Experts experts(int32_t n_experts, const In& in, const Down& down) {
    return {stack(n_experts, in), stack(n_experts, down)};
  }

  const float* vector(const std::string& name, int64_t n, VectorKind kind, int32_t width = 1) {
    auto* to = arena_.take_as<float>("weights", n);
    if (to != nullptr) source_.vector(name, n, kind, width, to);
    return to;
  }

  void tables(const ModelDescription& model, CudaWeights& out) {
    const int64_t vocab = model.spec.vocab, hidden = model.spec.hidden;
    const MatrixPart table{model.names.embedding, vocab, hidden, 0, vocab};
    const LinearCuda embedding = linear({&table, 1}, LinearUse::kGate);
    out.embedding = {embedding.weight, DType::kBF16, vocab, hidden, hidden};
    out.head = embedding;
    if (model.spec.tied) return;
    const MatrixPart head{model.names.lm_head, vocab, hidden, 0, vocab};
    out.head = linear({&head, 1}, LinearUse::kGate);
  }

 private:
  // One for all parts; blocks of scales must not be cut.
  WeightType type_of(std::span<const MatrixPart> parts) const {
    const WeightType type = source_.type_of(parts[0].name);
    int64_t rows = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      const bool cut = parts[i].first % ops::cuda::kFp8Block != 0 ||
                       (!last && parts[i].n_rows % ops::cuda::kFp8Block != 0);
      if (source_.type_of(parts[i].name) != type || (type == WeightType::kFp8Block && cut)) {
        return WeightType::kBF16;
      }
      rows += parts[i].n_rows;
    }
    const bool fits = parts[0].cols % kFp8Multiple == 0 && rows % kFp8Multiple == 0;
    return fits ? type : WeightType::kBF16;
  }

  template <typename Parts>
  ops::cuda::ExpertsCuda stack(int32_t n_experts, const Parts& parts_of) {
    const std::vector<MatrixPart> first = parts_of(0);
    ops::cuda::ExpertsCuda out;
    out.n_experts = n_experts;
    LinearCuda& all = out.stack;
    all.n_in = first[0].cols;
    for (const MatrixPart& part : first) all.n_out += part.n_rows;
    all.type = type_of(first);
    for (int32_t e = 1; e < n_experts; ++e) {
      if (type_of(parts_of(e)) != all.type) all.type = WeightType::kBF16;
    }
    char* to = take_weight(all, n_experts);
    float* scales = take_scales(all, n_experts);
    all.weight = to;
    all.scales = scales;
    for (int32_t e = 0; to != nullptr && e < n_experts; ++e) {
      fill(parts_of(e), all.type, to, scales);
      to += weight_bytes(all.type, all.n_out, all.n_in);
      if (scales != nullptr) scales += n_scales(all.type, all.n_out, all.n_in);
    }
    return out;
  }

  char* take_weight(const LinearCuda& w, int64_t n) {
    return static_cast<char*>(arena_.take("weights", n * weight_bytes(w.type, w.n_out, w.n_in)));
  }
  float* take_scales(const LinearCuda& w, int64_t n) {
    if (w.type == WeightType::kBF16) return nullptr;
    return arena_.take_as<float>("weights", n * n_scales(w.type, w.n_out, w.n_in));
  }

  // Null from an arena that counts.
  void fill(std::span<const MatrixPart> parts, WeightType type, char* to, float* scales) {
    if (to == nullptr) return;
    for (const MatrixPart& part : parts) {
      source_.matrix(part, type, to, scales);
      to += weight_bytes(type, part.n_rows, part.cols);
      if (scales != nullptr) scales += n_scales(type, part.n_rows, part.cols);
    }
  }

  Arena& arena_;
  WeightSource& source_;
};

}  // namespace

CudaWeights take_weights_cuda(const ModelDescription& model, Arena& arena, WeightSource& source) {
  CudaWeightSink sink(arena, source);
  CudaWeights out = take_weights(model, sink);
  if (!arena.counts_only()) source.finish();
  return out;
}

}  // namespace replayssm
