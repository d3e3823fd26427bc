// precision_record MODEL TEXT OUT LAYER...: runs a model over a text and writes the inputs of its
// recurrent layers (counted from 0) as precision_study --dump reads them.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/text_file.h"
#include "model/cpu/forward_cpu.h"
#include "model/cpu/weights_cpu.h"
#include "model/safetensors.h"
#include "model/tokenizer/tokenizer.h"
#include "replay/convert.h"

namespace replayssm {
namespace {

constexpr int64_t kChunk = 256;

struct Recording {
  std::vector<float> query, key, value, gate, beta;
};

void append(const Tokens& from, DType dtype, int64_t n_tokens, int64_t width,
            std::vector<float>& to) {
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = t * from.token_stride + i;
      to.push_back(dtype == DType::kF32
                       ? static_cast<const float*>(from.data)[at]
                       : bf16_to_float(static_cast<const uint16_t*>(from.data)[at]));
    }
  }
}

void write(const std::string& path, const Problem& p, const StepArgs& args, const Recording& r) {
  const int64_t n = static_cast<int64_t>(r.gate.size()) / p.n_heads;
  std::vector<TensorToWrite> tensors = {
      {"query", FileDType::kF32, {n, p.n_key_heads, p.key_dim}, r.query.data()},
      {"key", FileDType::kF32, {n, p.n_key_heads, p.key_dim}, r.key.data()},
      {"value", FileDType::kF32, {n, p.n_heads, p.value_dim}, r.value.data()},
      {"gate", FileDType::kF32, {n, p.n_heads}, r.gate.data()},
      {"a_log", FileDType::kF32, {p.n_heads}, args.a_log},
      {"dt_bias", FileDType::kF32, {p.n_heads}, args.dt_bias}};
  if (p.family == Family::kMamba2) {
    tensors.push_back({"skip", FileDType::kF32, {p.n_heads}, args.skip});
  } else {
    tensors.push_back({"beta", FileDType::kF32, {n, p.n_heads}, r.beta.data()});
  }
  write_safetensors(path, tensors);
}

// The CPU's ops, and a look at the arguments of each recurrence before it runs.
class RecordingOps : public OpsCpu {
 public:
  RecordingOps(EngineCpu& engine, const ForwardBatch& batch, const PassRowsCpu& rows,
               StatePool& pool, std::vector<Recording>& recordings, std::vector<StepArgs>& seen)
      : OpsCpu(engine, batch, rows, pool), recordings_(recordings), seen_(seen) {}

  void recurrence(size_t layer, const StepArgs& args) {
    const Problem& p = engine_.model.recurrent()[layer].problem;
    Recording& r = recordings_[layer];
    append(args.query, p.activation, n_tokens(), int64_t{p.n_key_heads} * p.key_dim, r.query);
    append(args.key, p.activation, n_tokens(), int64_t{p.n_key_heads} * p.key_dim, r.key);
    append(args.value, p.activation, n_tokens(), int64_t{p.n_heads} * p.value_dim, r.value);
    append(args.gate, DType::kF32, n_tokens(), p.n_heads, r.gate);
    if (p.family != Family::kMamba2) append(args.beta, DType::kF32, n_tokens(), p.n_heads, r.beta);
    seen_[layer] = args;
    OpsCpu::recurrence(layer, args);
  }

 private:
  std::vector<Recording>& recordings_;
  std::vector<StepArgs>& seen_;
};

void run(const std::string& folder, const std::string& text_file, const std::string& out,
         const std::vector<size_t>& layers) {
  const auto model = Model::load(folder, {});
  const auto tokenizer = model::Tokenizer::load(folder + "/tokenizer.json");
  const std::vector<int32_t> ids = tokenizer.encode(read_text_file(text_file));
  const int64_t n = static_cast<int64_t>(ids.size());

  ThreadPool pool;
  const ops::Context context(pool);
  const int64_t n_pages = ops::pages_for(n);
  const CpuLayers plans = plan_layers_cpu(*model, context.isa());
  HostArena memory;
  StatePool state = take_pool(plans.sizes, {1, 1, static_cast<int32_t>(n_pages)}, memory);
  std::vector<int32_t> pages;
  for (int64_t i = 0; i < n_pages; ++i) pages.push_back(static_cast<int32_t>(i));
  const LoadedWeightsCpu loaded = load_weights_cpu(*model, memory);
  ForwardCpu forward(*model, plans, loaded.weights, context, {kChunk, 1, 1}, memory);
  std::vector<Recording> recordings(model->recurrent().size());
  std::vector<StepArgs> seen(recordings.size());
  SequenceState sequence;
  while (sequence.n < n) {
    const int64_t count = std::min(kChunk, n - sequence.n);
    const Row row{sequence.n, sequence.c, sequence.n, static_cast<int32_t>(count), 0, 0, 0, 0};
    const ForwardRow forward_row{row, Phase::kSweep, pages.data()};
    const auto window = std::span<const int32_t>(ids).subspan(static_cast<size_t>(sequence.n),
                                                              static_cast<size_t>(count));
    forward.run<RecordingOps>({{&forward_row, 1}, window, {}}, state, recordings, seen);
    REPLAYSSM_CHECK(commit_sweep(model->grid(), row, sequence) == Status::kOk, "position ",
                    sequence.n);
  }
  for (const size_t layer : layers) {
    if (layer >= recordings.size()) fail("layer ", layer, ": the model has ", recordings.size());
    const std::string path = concat(out, "/layer", layer, ".safetensors");
    write(path, model->recurrent()[layer].problem, seen[layer], recordings[layer]);
    std::printf("%s: %lld tokens\n", path.c_str(), static_cast<long long>(n));
  }
}

}  // namespace
}  // namespace replayssm

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: precision_record MODEL TEXT OUT LAYER...\n");
    return 2;
  }
  std::vector<size_t> layers;
  for (int i = 4; i < argc; ++i) layers.push_back(std::strtoull(argv[i], nullptr, 10));
  try {
    replayssm::run(argv[1], argv[2], argv[3], layers);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "precision_record: %s\n", e.what());
    return 1;
  }
  return 0;
}
