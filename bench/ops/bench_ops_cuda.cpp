// Times the dense CUDA ops at the shapes of Qwen3.5 and Nemotron-3-Nano: graph replays over
// operands that rotate past the caches, beside the floor (bytes that must be read or written over
// the bandwidth, flops over the rate).
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bench/common/card.h"
#include "bench/kernels/device.h"
#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/elementwise_cuda.h"
#include "ops/cuda/linear_cuda.h"
#include "ops/cuda/moe_cuda.h"
#include "ops/cuda/norm_cuda.h"
#include "ops/cuda/quantise_cuda.h"
#include "ops/cuda/sample_cuda.h"

namespace replayssm::bench {
namespace {

using ops::cuda::CudaContext;

std::vector<uint16_t> random_bf16(float spread) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<uint16_t> out(1 << 20);
  for (uint16_t& x : out) {
    const float value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    x = static_cast<uint16_t>(bits >> 16);
  }
  return out;
}

class Bench {
 public:
  Bench() {
    check_cuda(cudaStreamCreate(&stream_), "stream");
    check_cuda(cudaEventCreate(&begin_), "event");
    check_cuda(cudaEventCreate(&end_), "event");
    workspace_ = arena_.take(CudaContext::kWorkspaceBytes);
    values_ = random_bf16(0.05f);
    bytes_ = values_;
    for (uint16_t& x : bytes_) x &= 0xbfbf;  // E4M3 bytes below 2, so no NaN
  }

  void linears(ops::cuda::Mode mode, ops::cuda::WeightType type);
  void attentions();
  void experts();
  void rows();
  void mixtures();

 private:
  uint16_t* halves(int64_t n) { return arena_.take<uint16_t>(n, values_); }
  void reset() {
    arena_.reset();
    workspace_ = arena_.take(CudaContext::kWorkspaceBytes);
  }

  // Microseconds of launch(i) over i < n, by the median of graph replays; one eager pass before.
  double time_us(int n, const std::function<void(int)>& launch) {
    for (int i = 0; i < n; ++i) launch(i);
    cudaGraph_t graph;
    cudaGraphExec_t run;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < n; ++i) launch(i);
    check_cuda(cudaStreamEndCapture(stream_, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&run, graph, 0), "graph");
    std::vector<float> times;
    for (int i = -1; i < 5; ++i) {
      float ms = 0;
      check_cuda(cudaEventRecord(begin_, stream_), "record");
      check_cuda(cudaGraphLaunch(run, stream_), "launch");
      check_cuda(cudaEventRecord(end_, stream_), "record");
      check_cuda(cudaEventSynchronize(end_), "replay");
      check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "elapsed");
      if (i >= 0) times.push_back(ms);
    }
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    std::nth_element(times.begin(), times.begin() + 2, times.end());
    return times[2] * 1e3 / n;
  }

  void print(const std::string& what, double us, double bytes, double flops) const {
    const double floor = 1e6 * std::max(bytes / kReadBytesPerSecond, flops / kFlopsPerSecond);
    std::printf("%-52s %9.1f us  %5.2f TB/s  %4.0f TFLOP/s  %3.0f %% of the floor\n", what.c_str(),
                us, bytes / us * 1e-6, flops / us * 1e-6, 100 * floor / us);
    std::fflush(stdout);
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Arena arena_;
  void* workspace_ = nullptr;
  std::vector<uint16_t> values_, bytes_;
};

struct LinearShape {
  const char* name;
  int64_t n_out, n_in;
  DType y;
  bool accumulate;
};

constexpr LinearShape kLinears[] = {
    {"qwen3.5-4b gdn in", 12288, 2560, DType::kBF16, false},
    {"qwen3.5-4b gdn out", 2560, 4096, DType::kF32, true},
    {"qwen3.5-4b gate up", 18432, 2560, DType::kBF16, false},
    {"qwen3.5-4b down", 2560, 9216, DType::kF32, true},
    {"qwen3.5-4b qkv", 10240, 2560, DType::kBF16, false},
    {"qwen3.5-4b head", 248320, 2560, DType::kF32, false},
    {"nano-4b zx", 17408, 3136, DType::kBF16, false},
    {"nano-4b mamba out", 3136, 7680, DType::kF32, true},
    {"nano-4b up", 12544, 3136, DType::kBF16, false},
    {"nano-4b down", 3136, 12544, DType::kF32, true},
    {"nano-4b head", 131072, 3136, DType::kF32, false},
};

void Bench::linears(ops::cuda::Mode mode, ops::cuda::WeightType type) {
  using ops::cuda::WeightType;
  const std::string suffix = concat(type == WeightType::kBF16     ? ""
                                    : type == WeightType::kFp8Row ? " fp8 rows"
                                                                  : " fp8 blocks",
                                    mode == ops::cuda::Mode::kExact ? " exact" : "");
  for (const LinearShape& shape : kLinears) {
    for (const int64_t rows : {1, 2, 4, 32, 64, 256, 1024}) {
      if (rows == 1024 && shape.n_out > 100000) continue;
      reset();
      const CudaContext context(stream_, workspace_, mode);
      const int64_t elements = shape.n_out * shape.n_in;
      const int64_t weight_bytes = ops::cuda::weight_bytes(type, shape.n_out, shape.n_in);
      const int n = static_cast<int>(std::max<int64_t>(2, (int64_t{256} << 20) / weight_bytes));
      const auto* const scales =
          arena_.take<float>(shape.n_out * ops::cuda::fp8_scale_stride(shape.n_in),
                             std::vector<float>(size_t{1} << 12, 0.01f));
      std::vector<ops::cuda::LinearCuda> weights;
      for (int i = 0; i < n; ++i) {
        const auto* const data =
            arena_.take<uint16_t>(weight_bytes / 2, type == WeightType::kBF16 ? values_ : bytes_);
        weights.push_back({data, type, shape.n_out, shape.n_in, scales});
      }
      const ops::ConstMatrix x{halves(rows * shape.n_in), DType::kBF16, rows, shape.n_in,
                               shape.n_in};
      const ops::Matrix y{halves(rows * shape.n_out * 2), shape.y, rows, shape.n_out, shape.n_out};
      const double y_bytes = static_cast<double>(rows * shape.n_out * dtype_bytes(shape.y));
      const double bytes = static_cast<double>(weight_bytes) + 2.0 * rows * shape.n_in +
                           (shape.accumulate ? 2 : 1) * y_bytes;
      const std::string title = concat(shape.name, " rows ", rows, suffix);
      try {
        const double us = time_us(n, [&](int i) {
          ops::cuda::linear(context, weights[static_cast<size_t>(i)], x, y, shape.accumulate);
        });
        print(title, us, bytes, 2.0 * elements * rows);
      } catch (const Error& error) {
        std::printf("%-52s %s\n", title.c_str(), error.what());
      }
    }
  }
}

struct AttentionShape {
  const char* name;
  int64_t n_heads, n_kv_heads, dim;
};
struct AttentionBatch {
  int64_t rows, context;
  int32_t tokens;
};

constexpr AttentionShape kAttentions[] = {
    {"qwen3.5-4b", 16, 4, 256}, {"nano-4b", 40, 8, 128}, {"nano-30b", 32, 2, 128}};
constexpr AttentionBatch kBatches[] = {
    {1, 1024, 1},   {1, 1024, 4},    {1, 16384, 1},   {32, 1024, 1},  {32, 1024, 4},
    {64, 1024, 1},  {64, 1024, 4},   {256, 1024, 1},  {256, 1024, 4}, {256, 1024, 8},
    {16, 16384, 4}, {1, 2048, 2048}, {1, 16384, 1024}};

void Bench::attentions() {
  for (const AttentionShape& shape : kAttentions) {
    for (const AttentionBatch& batch : kBatches) {
      reset();
      const CudaContext context(stream_, workspace_, ops::cuda::Mode::kFast);
      const ops::cuda::KvShapeCuda kv{static_cast<int32_t>(shape.n_kv_heads),
                                      static_cast<int32_t>(shape.dim), DType::kBF16};
      const int64_t pages_a_row = batch.context / ops::kKvPage;
      const int64_t n_pages = batch.rows * pages_a_row;
      const int n = static_cast<int>(
          std::max<int64_t>(1, (int64_t{256} << 20) / (n_pages * kv.page_bytes())));
      std::vector<ops::KvPool> pools;
      for (int i = 0; i < n; ++i) {
        pools.push_back({halves(n_pages * kv.page_bytes() / 2), kv.page_bytes()});
      }
      std::vector<int32_t> order(static_cast<size_t>(n_pages));
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
      std::shuffle(order.begin(), order.end(), std::mt19937(1));
      const std::vector<int64_t> start(static_cast<size_t>(batch.rows),
                                       batch.context - batch.tokens);
      const std::vector<int32_t> tokens(static_cast<size_t>(batch.rows), batch.tokens);
      std::vector<int64_t> token;
      for (int64_t r = 0; r < batch.rows; ++r) token.push_back(r * batch.tokens);
      const ops::cuda::AttentionRowsCuda rows{arena_.take<int64_t>(batch.rows, start),
                                              arena_.take<int32_t>(batch.rows, tokens),
                                              arena_.take<int64_t>(batch.rows, token),
                                              arena_.take<int32_t>(n_pages, order),
                                              pages_a_row,
                                              static_cast<int32_t>(batch.rows),
                                              batch.tokens,
                                              batch.context};
      const int64_t n_tokens = batch.rows * batch.tokens, width = shape.n_heads * shape.dim;
      const ops::Heads q{halves(n_tokens * width),
                         DType::kBF16,
                         n_tokens,
                         shape.n_heads,
                         shape.dim,
                         width,
                         shape.dim};
      ops::Heads out = q;
      out.data = halves(n_tokens * width);
      const float scale = 1.0f / std::sqrt(static_cast<float>(shape.dim));
      const double us = time_us(std::max(n, 4), [&](int i) {
        ops::cuda::attention(context, kv, pools[static_cast<size_t>(i % n)], rows, scale, q, out);
      });
      const double kv_bytes = static_cast<double>(n_pages * kv.page_bytes());
      double pairs = 0;  // of query and position
      for (int32_t t = 0; t < batch.tokens; ++t) {
        pairs += static_cast<double>(batch.context - batch.tokens + t + 1);
      }
      print(concat("attention ", shape.name, " rows ", batch.rows, " T ", batch.tokens, " context ",
                   batch.context),
            us, kv_bytes + 4.0 * n_tokens * width,
            4.0 * pairs * static_cast<double>(batch.rows * width));
    }
  }
}

// One layer of all experts; tokens spread evenly, as a trained router nearly does.
struct ExpertShape {
  const char* name;
  int32_t n_experts, top_k;
  int64_t n_out, n_in;
};
constexpr ExpertShape kExperts[] = {{"nano-30b up", 128, 6, 1856, 2688},
                                    {"nano-30b down", 128, 6, 2688, 1856},
                                    {"qwen3.5-35b gate up", 256, 8, 1024, 2048},
                                    {"qwen3.5-35b down", 256, 8, 2048, 512}};

void Bench::experts() {
  using ops::cuda::WeightType;
  for (const ExpertShape& shape : kExperts) {
    for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Row, WeightType::kFp8Block}) {
      for (const int64_t tokens : {1, 16, 64, 256, 1024}) {
        reset();
        const CudaContext context(stream_, workspace_, ops::cuda::Mode::kFast);
        const int64_t rows = tokens * shape.top_k;
        const int64_t elements = shape.n_experts * shape.n_out * shape.n_in;
        const ops::cuda::ExpertsCuda experts{
            {arena_.take<uint16_t>(ops::cuda::weight_bytes(type, 1, elements) / 2,
                                   type == WeightType::kBF16 ? values_ : bytes_),
             type, shape.n_out, shape.n_in,
             arena_.take<float>(
                 shape.n_experts * shape.n_out * ops::cuda::fp8_scale_stride(shape.n_in),
                 std::vector<float>(size_t{1} << 12, 0.01f))},
            shape.n_experts};
        std::vector<int32_t> first{0};
        for (int32_t e = 0; e < shape.n_experts; ++e) {
          first.push_back(static_cast<int32_t>(rows * (e + 1) / shape.n_experts));
        }
        const auto* const begin = arena_.take<int32_t>(shape.n_experts + 1, first);
        const ops::ConstMatrix x{halves(rows * shape.n_in), DType::kBF16, rows, shape.n_in,
                                 shape.n_in};
        const ops::Matrix y{halves(rows * shape.n_out), DType::kBF16, rows, shape.n_out,
                            shape.n_out};
        const double us = time_us(4, [&](int) {
          if (type == WeightType::kBF16) {
            ops::cuda::expert_linear(context, experts, begin, x, y);
            return;
          }
          const auto quantised = ops::cuda::quantised_at(workspace_, rows, shape.n_in);
          ops::cuda::quantise(context, type, x, quantised);
          ops::cuda::expert_linear(context, experts, begin, quantised, y);
        });
        const double used = static_cast<double>(std::min<int64_t>(rows, shape.n_experts)) /
                            shape.n_experts * ops::cuda::weight_bytes(type, 1, elements);
        print(concat("experts ", shape.name, " tokens ", tokens,
                     type == WeightType::kBF16     ? ""
                     : type == WeightType::kFp8Row ? " fp8 rows"
                                                   : " fp8 blocks"),
              us, used + 2.0 * rows * (shape.n_in + shape.n_out),
              2.0 * rows * shape.n_out * shape.n_in);
      }
    }
  }
}

// Ops over rows, and sampling.
void Bench::rows() {
  for (const int64_t rows : {1, 64, 256, 1024}) {
    reset();
    const CudaContext context(stream_, workspace_, ops::cuda::Mode::kFast);
    const int64_t cols = 2560, ff = 9216;
    const ops::Matrix stream{arena_.take(rows * cols * 4), DType::kF32, rows, cols, cols};
    const ops::Matrix normed{arena_.take(rows * cols * 2), DType::kBF16, rows, cols, cols};
    const ops::ConstMatrix gate{halves(rows * ff * 2), DType::kBF16, rows, ff, 2 * ff};
    const ops::ConstMatrix up = {gate.at(0, ff), DType::kBF16, rows, ff, 2 * ff};
    const ops::Matrix y{arena_.take(rows * ff * 2), DType::kBF16, rows, ff, ff};
    const ops::NormWeight weight{
        arena_.take<float>(cols, std::vector<float>(static_cast<size_t>(cols), 1.0f)), false};
    const auto title = [&](const char* name) { return concat(name, " rows ", rows); };
    const auto n = static_cast<double>(rows);
    print(title("rms_norm 2560"),
          time_us(20, [&](int) { ops::cuda::rms_norm(context, stream, weight, 1e-6f, normed); }),
          n * cols * 6, 0);
    print(title("add_rms_norm 2560"),
          time_us(20,
                  [&](int) {
                    ops::cuda::add_rms_norm(context, stream, normed, weight, 1e-6f, normed);
                  }),
          n * cols * 12, 0);
    print(title("silu_mul 9216"),
          time_us(20, [&](int) { ops::cuda::silu_mul(context, gate, up, y); }), n * ff * 6, 0);
    const ops::GatedNorm norm{
        ops::GateOrder::kNormThenGate, ops::GateFunction::kSilu, 128, weight, true, 1e-6f};
    const ops::Matrix heads{y.data, DType::kBF16, rows, 4096, 4096};
    print(title("gated_norm 32 x 128"),
          time_us(20, [&](int) { ops::cuda::gated_norm(context, norm, heads, heads, heads); }),
          n * 4096 * 6, 0);
    const int64_t vocab = 248320;
    std::vector<float> values(1 << 20);
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (float& x : values) x = normal(random);
    const ops::ConstMatrix logits{arena_.take<float>(rows * vocab, values), DType::kF32, rows,
                                  vocab, vocab};
    auto* const tokens = static_cast<int32_t*>(arena_.take(rows * 4));
    print(title("argmax 248320"),
          time_us(4, [&](int) { ops::cuda::argmax(context, logits, tokens); }), n * vocab * 4, 0);
    std::vector<int64_t> positions(static_cast<size_t>(rows));
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
    const auto* const at = arena_.take<int64_t>(rows, positions);
    const auto* const zeros =
        arena_.take<int32_t>(rows, std::vector<int32_t>(static_cast<size_t>(rows), 0));
    for (const ops::SamplerParams& params :
         {ops::SamplerParams{0.7f, 0, 1.0f, 0.0f, 1}, ops::SamplerParams{0.7f, 0, 0.9f, 0.0f, 1},
          ops::SamplerParams{0.7f, 20, 0.9f, 0.0f, 1}}) {
      const auto* const device_params = arena_.take<ops::SamplerParams>(1, {params});
      print(concat(title("sample 248320"), " top_k ", params.top_k, " top_p ", params.top_p),
            time_us(4,
                    [&](int) {
                      ops::cuda::sample(context, logits, {device_params, zeros, at}, tokens);
                    }),
            n * vocab * 4, 0);
    }
  }
}

// What stands round the experts' products: norms, the router, sorting, spreading, activations,
// sums.
struct MixtureShape {
  const char* name;
  ops::RouterScore score;
  int32_t n_experts, top_k;
  int64_t hidden, ff;
  bool gated;
  ops::cuda::WeightType type;
  int64_t inner, group;  // of the recurrent layers' gated norm
};
constexpr MixtureShape kMixtures[] = {
    {"qwen3.5-35b", ops::RouterScore::kSoftmax, 256, 8, 2048, 512, true,
     ops::cuda::WeightType::kFp8Block, 4096, 128},
    {"nano-30b", ops::RouterScore::kSigmoid, 128, 6, 2688, 1856, false,
     ops::cuda::WeightType::kFp8Row, 4096, 512},
    {"nano-4b (dense)", ops::RouterScore::kSoftmax, 8, 2, 3136, 12544, false,
     ops::cuda::WeightType::kFp8Row, 7680, 960},
};

void Bench::mixtures() {
  namespace dev = ops::cuda;
  for (const MixtureShape& shape : kMixtures) {
    for (const int64_t rows : {256, 1024}) {
      reset();
      const CudaContext context(stream_, workspace_, dev::Mode::kFast);
      const int64_t chosen = rows * shape.top_k, wide = (shape.gated ? 2 : 1) * shape.ff;
      const auto n = static_cast<double>(rows), m = static_cast<double>(chosen);
      const auto hidden = static_cast<double>(shape.hidden), ff = static_cast<double>(shape.ff);
      std::mt19937 random(2);
      std::normal_distribution<float> normal(0.0f, 1.0f);
      std::vector<float> values(size_t{1} << 18);
      for (float& x : values) x = normal(random);
      const auto floats = [&](int64_t count) { return arena_.take<float>(count, values); };
      const auto matrix = [](const void* data, DType dtype, int64_t r, int64_t c) {
        return ops::Matrix{const_cast<void*>(data), dtype, r, c, c};
      };
      const ops::NormWeight weight{floats(shape.inner), false};
      const ops::Matrix stream =
          matrix(floats(rows * shape.hidden), DType::kF32, rows, shape.hidden);
      const ops::Matrix normed =
          matrix(halves(rows * shape.hidden), DType::kBF16, rows, shape.hidden);
      const auto show = [&](const char* what, double bytes,
                            const std::function<void(int)>& launch) {
        print(concat(shape.name, " ", what, ", ", rows, " rows"), time_us(20, launch), bytes, 0);
      };
      show("norm", n * hidden * 6,
           [&](int) { dev::rms_norm(context, stream, weight, 1e-6f, normed); });
      const bool groups = shape.gated;
      const ops::GatedNorm norm{
          groups ? ops::GateOrder::kNormThenGate : ops::GateOrder::kGateThenNorm,
          ops::GateFunction::kSilu,
          shape.group,
          weight,
          groups,
          1e-6f};
      const ops::Matrix z = matrix(halves(rows * shape.inner), DType::kBF16, rows, shape.inner);
      const ops::Matrix y = matrix(halves(rows * shape.inner), DType::kBF16, rows, shape.inner);
      show("gated norm", n * static_cast<double>(shape.inner) * 6,
           [&](int) { dev::gated_norm(context, norm, y, z, y); });
      ops::Router router;
      router.score = shape.score;
      router.n_experts = shape.n_experts;
      router.top_k = shape.top_k;
      router.renormalise = true;
      const ops::ConstMatrix logits =
          matrix(floats(rows * shape.n_experts), DType::kF32, rows, shape.n_experts);
      auto* const experts = static_cast<int32_t*>(arena_.take(chosen * 4));
      auto* const weights = static_cast<float*>(arena_.take(chosen * 4));
      auto* const row = static_cast<int32_t*>(arena_.take(chosen * 4));
      auto* const first = static_cast<int32_t*>(arena_.take((shape.n_experts + 1) * 4));
      show("route", n * shape.n_experts * 4 + m * 8,
           [&](int) { dev::route(context, router, logits, experts, weights); });
      show("sort", m * 8, [&](int) {
        dev::sort_by_expert(context, experts, rows, shape.top_k, shape.n_experts, first, row);
      });
      const auto spread = dev::quantised_at(arena_.take(dev::quantised_bytes(chosen, shape.hidden)),
                                            chosen, shape.hidden);
      show("quantise and spread", n * hidden * 2 + m * hidden, [&](int) {
        dev::quantise_spread(context, shape.type, normed, row, shape.top_k, spread);
      });
      show("quantise", n * hidden * 3, [&](int) {
        dev::quantise(context, shape.type, normed,
                      dev::quantised_at(spread.data, rows, shape.hidden));
      });
      const ops::Matrix inner = matrix(halves(chosen * wide), DType::kBF16, chosen, wide);
      const auto active =
          dev::quantised_at(arena_.take(dev::quantised_bytes(chosen, shape.ff)), chosen, shape.ff);
      show("activate and quantise", m * (static_cast<double>(wide) * 2 + ff), [&](int) {
        if (shape.gated) {
          dev::quantise_silu_mul(context, shape.type, inner.slice_cols(0, shape.ff),
                                 inner.slice_cols(shape.ff, shape.ff), active);
        } else {
          dev::quantise_relu2(context, shape.type, inner, active);
        }
      });
      const ops::Matrix some = matrix(halves(rows * shape.ff), DType::kBF16, rows, shape.ff);
      show("activate", n * (static_cast<double>(wide) * 2 + 2 * ff), [&](int) {
        if (shape.gated) {
          dev::silu_mul(context, inner.slice_rows(0, rows).slice_cols(0, shape.ff),
                        inner.slice_rows(0, rows).slice_cols(shape.ff, shape.ff), some);
        } else {
          dev::relu2(context, inner.slice_rows(0, rows), some);
        }
      });
      const ops::Matrix out =
          matrix(floats(chosen * shape.hidden), DType::kF32, chosen, shape.hidden);
      const ops::ConstMatrix shared =
          matrix(floats(rows * shape.hidden), DType::kF32, rows, shape.hidden);
      show("sum", m * hidden * 4 + n * hidden * 12, [&](int) {
        dev::sum_rows(context, out, row, weights, shape.top_k, stream, true, {shared, {}});
      });
    }
  }
}

}  // namespace
}  // namespace replayssm::bench

int main(int argc, char** argv) {
  try {
    replayssm::bench::Bench bench;
    const std::string part = argc > 1 ? argv[1] : "all";
    if (part == "all" || part == "attention") bench.attentions();
    using replayssm::ops::cuda::Mode;
    using replayssm::ops::cuda::WeightType;
    if (part == "all" || part == "linear") bench.linears(Mode::kFast, WeightType::kBF16);
    if (part == "all" || part == "exact") bench.linears(Mode::kExact, WeightType::kBF16);
    if (part == "all" || part == "fp8") bench.linears(Mode::kFast, WeightType::kFp8Block);
    if (part == "all" || part == "fp8-rows") bench.linears(Mode::kFast, WeightType::kFp8Row);
    if (part == "all" || part == "experts") bench.experts();
    if (part == "all" || part == "rows") bench.rows();
    if (part == "all" || part == "mixtures") bench.mixtures();
  } catch (const replayssm::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
