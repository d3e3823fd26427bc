// The GPU baselines against the recurrence in double: every method ends with the same outputs and
// states, whatever was drafted and rejected. A baseline that computed something else would be no
// measure of replay.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>

#include "bench/baselines/state_kernels.h"
#include "device.h"
#include "replay/convert.h"
#include "replay/ref/reference.h"

namespace replayssm::test {
namespace {

using cuda::BaselineArgs;
using cuda::BaselineInputs;
using cuda::BaselineRow;

constexpr int kSequences = 3;
constexpr int64_t kTokens = 40;
constexpr int kWindow = 4;

// kPlainOfMany: in a launch that fills the GPU, with rows that are none.
enum class Method { kPlain, kPlainOfMany, kSnapshots, kActivationReplay, kJointAdvance };

struct Layer {
  const char* name;
  Family family;
  int n_heads, n_key_heads, value_dim;
};
constexpr Layer kLayers[] = {
    {"GDN", Family::kGdn, 8, 4, 128},
    {"Mamba-2, P = 64", Family::kMamba2, 8, 2, 64},
    {"Mamba-2, P = 80", Family::kMamba2, 24, 2, 80},
};

Problem problem_of(const Layer& layer, DType state) {
  Problem p;
  p.family = layer.family;
  p.n_heads = layer.n_heads;
  p.n_key_heads = layer.n_key_heads;
  p.value_dim = layer.value_dim;
  p.key_dim = 128;
  p.activation = DType::kBF16;
  p.checkpoint = state;
  return p;
}

// Every sequence's tokens, as the device gets them: bf16 values and fp32 gates.
struct Inputs {
  explicit Inputs(const Problem& p)
      : keys(p.n_key_heads * p.key_dim), values(p.n_heads * p.value_dim), heads(p.n_heads) {
    const int64_t n = kSequences * kTokens;
    query = draw(n * keys, true), key = draw(n * keys, true), value = draw(n * values, true);
    gate = draw(n * heads, false), beta = draw(n * heads, false);
    a_log = draw(heads, false), skip = draw(heads, false), dt_bias = draw(heads, false);
    for (float& x : dt_bias) x = x * 0.5f - 3.0f;
  }
  ref::TokenInputs token(int64_t i) const {
    return {query.data() + i * keys, key.data() + i * keys, value.data() + i * values,
            gate.data() + i * heads, beta.data() + i * heads};
  }
  std::vector<float> draw(int64_t n, bool rounded) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) {
      v = normal(rng);
      if (rounded) v = bf16_to_float(float_to_bf16(v));
    }
    return x;
  }
  std::mt19937_64 rng{7};
  std::normal_distribution<float> normal;
  int64_t keys, values, heads;
  std::vector<float> query, key, value, gate, beta, a_log, dt_bias, skip;
};

// One window's inputs on the device, gathered by token index.
class Window {
 public:
  explicit Window(const Inputs& in)
      : in_(in),
        query_(kMost * in.keys * 2),
        key_(kMost * in.keys * 2),
        value_(kMost * in.values * 2),
        gate_(kMost * in.heads * 4),
        beta_(kMost * in.heads * 4) {}
  BaselineInputs gather(const std::vector<int64_t>& tokens) {
    query_.upload(bf16(pick(in_.query, in_.keys, tokens)));
    key_.upload(bf16(pick(in_.key, in_.keys, tokens)));
    value_.upload(bf16(pick(in_.value, in_.values, tokens)));
    gate_.upload(pick(in_.gate, in_.heads, tokens));
    beta_.upload(pick(in_.beta, in_.heads, tokens));
    return {{query_.data(), in_.keys},
            {key_.data(), in_.keys},
            {value_.data(), in_.values},
            {gate_.data(), in_.heads},
            {beta_.data(), in_.heads}};
  }

 private:
  static constexpr int64_t kMost = kSequences * kWindow;
  static std::vector<float> pick(const std::vector<float>& all, int64_t width,
                                 const std::vector<int64_t>& tokens) {
    std::vector<float> x;
    for (const int64_t t : tokens) {
      x.insert(x.end(), all.begin() + t * width, all.begin() + (t + 1) * width);
    }
    return x;
  }
  static std::vector<uint16_t> bf16(const std::vector<float>& x) {
    std::vector<uint16_t> bits;
    for (const float v : x) bits.push_back(float_to_bf16(v));
    return bits;
  }
  const Inputs& in_;
  DeviceBuffer query_, key_, value_, gate_, beta_;
};

struct Result {
  std::vector<float> y;      // [sequence, token, head, value]
  std::vector<float> state;  // [sequence, head, value, key]
};

Result run(const Problem& p, const Inputs& in, Method method) {
  EXPECT_EQ(cuda::baseline_reason(p), "");
  const bool plain = method == Method::kPlain || method == Method::kPlainOfMany;
  const int window = plain ? 1 : kWindow;
  const int slots = method == Method::kSnapshots ? kWindow : 1;  // of a sequence
  const int64_t state_elements = in.values * p.key_dim, bytes = dtype_bytes(p.checkpoint);
  DeviceBuffer states(kSequences * slots * state_elements * bytes);
  DeviceBuffer out(kSequences * kWindow * in.values * 2);
  DeviceBuffer a_log(in.a_log), dt_bias(in.dt_bias), skip(in.skip);
  const int n_rows = method == Method::kPlainOfMany ? 200 : kSequences;
  DeviceBuffer rows_device(n_rows * sizeof(BaselineRow)), snapshots_device(1 << 12);
  Window windows[2] = {Window(in), Window(in)};
  BaselineArgs args;
  args.rows = static_cast<const BaselineRow*>(rows_device.data());
  args.n_rows = n_rows;
  args.a_log = static_cast<const float*>(a_log.data());
  args.dt_bias = static_cast<const float*>(dt_bias.data());
  args.skip = static_cast<const float*>(skip.data());
  args.out = {out.data(), in.values};
  args.state = states.data();
  args.state_slot_stride = state_elements;
  for (int i = 0; i < kSequences; ++i) {  // the zero state in each sequence's first slot
    cuda_check(cudaMemset(static_cast<char*>(states.data()) + i * slots * state_elements * bytes, 0,
                          static_cast<size_t>(state_elements * bytes)),
               "zero state");
  }
  const auto launch = [&](std::vector<BaselineRow> rows) {
    rows.resize(n_rows);
    rows_device.upload(rows);
    cuda::baseline_step(p, args, nullptr);
    cuda_check(cudaGetLastError(), "launch");
  };

  Result result;
  result.y.resize(static_cast<size_t>(kSequences * kTokens * in.values));
  std::mt19937_64 rng(5);
  std::vector<int64_t> n(kSequences, 0);
  std::vector<int> accepted(kSequences, 0);  // tokens of the previous window
  std::vector<int32_t> slot;
  for (int i = 0; i < kSequences; ++i) slot.push_back(i * slots);
  for (int step = 0; n != std::vector<int64_t>(kSequences, kTokens); ++step) {
    std::vector<BaselineRow> rows;
    std::vector<int32_t> snapshots;
    std::vector<int64_t> tokens;
    std::vector<int> before = accepted;
    for (int i = 0; i < kSequences; ++i) {
      const int64_t left = kTokens - n[i];
      const int t = static_cast<int>(std::min<int64_t>(window, left));
      // With snapshots at least the window's first token is accepted.
      const int least = plain || method == Method::kSnapshots ? 1 : 0;
      accepted[i] = t == 0 ? 0 : std::max<int>(least, static_cast<int>(rng() % (t + 1)));
      const int64_t first = static_cast<int64_t>(tokens.size());
      for (int j = 0; j < window; ++j) {
        const int64_t at = j < accepted[i] ? n[i] + j : static_cast<int64_t>(rng() % kTokens);
        tokens.push_back(i * kTokens + at);
        snapshots.push_back(j < t ? i * slots + j : -1);
      }
      const bool joint = method == Method::kJointAdvance;
      const bool skipped = t == 0 && !(joint && before[i] > 0);
      rows.push_back({skipped ? -1 : slot[i], joint ? before[i] : 0, joint ? slot[i] : -1, t,
                      i * int64_t{window}, first});
    }
    if (plain || method == Method::kSnapshots) {
      snapshots_device.upload(snapshots);
      args.snapshot_slots = static_cast<const int32_t*>(snapshots_device.data());
      args.snapshot_stride = window;
    }
    args.kept = args.inputs;
    args.inputs = windows[step % 2].gather(tokens);
    launch(rows);
    const auto y = out.download<uint16_t>(kSequences * window * in.values);
    if (method == Method::kActivationReplay) {
      args.kept = args.inputs;
      for (int i = 0; i < kSequences; ++i) {
        rows[i] = {accepted[i] > 0 ? slot[i] : -1, accepted[i], slot[i], 0, i * int64_t{window}, 0};
      }
      launch(rows);
    }
    for (int i = 0; i < kSequences; ++i) {
      for (int64_t j = 0; j < accepted[i] * in.values; ++j) {
        result.y[static_cast<size_t>((i * kTokens + n[i]) * in.values + j)] =
            bf16_to_float(y[static_cast<size_t>(i * window * in.values + j)]);
      }
      n[i] += accepted[i];
      if (method == Method::kSnapshots && accepted[i] > 0) slot[i] = i * slots + accepted[i] - 1;
    }
  }
  if (method == Method::kJointAdvance) {  // the last window's tokens are still to be gone through
    args.kept = args.inputs;
    std::vector<BaselineRow> rows;
    for (int i = 0; i < kSequences; ++i) {
      rows.push_back(
          {accepted[i] > 0 ? slot[i] : -1, accepted[i], slot[i], 0, i * int64_t{window}, 0});
    }
    launch(rows);
  }
  cuda_check(cudaDeviceSynchronize(), "steps");
  for (int i = 0; i < kSequences; ++i) {
    const int64_t at = slot[i] * state_elements * bytes;
    if (p.checkpoint == DType::kF32) {
      const auto s = states.download<float>(state_elements, at);
      result.state.insert(result.state.end(), s.begin(), s.end());
    } else {
      for (const uint16_t bits : states.download<uint16_t>(state_elements, at)) {
        result.state.push_back(p.checkpoint == DType::kF16 ? half_to_float(bits)
                                                           : bf16_to_float(bits));
      }
    }
  }
  return result;
}

double relative_error(const std::vector<double>& truth, const std::vector<float>& x) {
  double num = 0, den = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    num += (x[i] - truth[i]) * (x[i] - truth[i]);
    den += truth[i] * truth[i];
  }
  return std::sqrt(num / den);
}

class CudaBaselines : public testing::TestWithParam<std::tuple<Layer, DType>> {};

TEST_P(CudaBaselines, EveryMethodIsTheRecurrence) {
  const auto& [layer, dtype] = GetParam();
  const Problem p = problem_of(layer, dtype);
  const Inputs in(p);
  std::vector<double> y, state;
  for (int i = 0; i < kSequences; ++i) {
    ref::Recurrence truth(p, {in.a_log.data(), in.dt_bias.data(), in.skip.data()});
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto token = truth.append(in.token(i * kTokens + t));
      y.insert(y.end(), token.begin(), token.end());
    }
    state.insert(state.end(), truth.state().begin(), truth.state().end());
  }
  // bf16 outputs; a state rounded once a token at most.
  const double y_bound = dtype == DType::kBF16 ? 1e-2 : 3e-3;
  const double state_bound = dtype == DType::kF32 ? 1e-5 : dtype == DType::kF16 ? 2e-3 : 1.5e-2;
  for (const Method method : {Method::kPlain, Method::kPlainOfMany, Method::kSnapshots,
                              Method::kActivationReplay, Method::kJointAdvance}) {
    const Result result = run(p, in, method);
    const double y_error = relative_error(y, result.y);
    const double state_error = relative_error(state, result.state);
    std::printf("%s, %s, method %d: y %.2e, state %.2e\n", layer.name, dtype_name(dtype),
                static_cast<int>(method), y_error, state_error);
    EXPECT_LT(y_error, y_bound);
    EXPECT_LT(state_error, state_bound);
  }
}

std::string case_name(const testing::TestParamInfo<CudaBaselines::ParamType>& info) {
  const auto& [layer, dtype] = info.param;
  const std::string family = layer.family == Family::kGdn ? "gdn" : "mamba2";
  return family + "_V" + std::to_string(layer.value_dim) + "_" + dtype_name(dtype);
}

INSTANTIATE_TEST_SUITE_P(All, CudaBaselines,
                         testing::Combine(testing::ValuesIn(kLayers),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         case_name);

}  // namespace
}  // namespace replayssm::test
