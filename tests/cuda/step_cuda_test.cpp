// The CUDA step against the recurrence in double, and against itself: any windows, any accepted
// counts, rejected drafts of other tokens, give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "device.h"
#include "replay/convert.h"
#include "replay/cuda/kernels_cuda.h"
#include "replay/ref/reference.h"

namespace replayssm::test {
namespace {

constexpr int kSequences = 3;
constexpr int64_t kTokens = 100;

struct Layer {
  const char* name;
  Family family;
  int n_heads, n_key_heads, value_dim;
};
constexpr Layer kLayers[] = {
    {"GDN 4 / 8 x 128", Family::kGdn, 8, 4, 128},
    {"Mamba-2 8 / 2 x 64", Family::kMamba2, 8, 2, 64},
    {"Mamba-2 24 / 2 x 80", Family::kMamba2, 24, 2, 80},
};

Problem problem_of(const Layer& layer, DType checkpoint, int window) {
  Problem p;
  p.family = layer.family;
  p.n_heads = layer.n_heads;
  p.n_key_heads = layer.n_key_heads;
  p.value_dim = layer.value_dim;
  p.key_dim = 128;
  p.grid = {16, Grid::rows_for(16, window)};
  p.max_window = window;
  p.activation = DType::kBF16;
  p.ring = layer.family == Family::kMamba2 ? DType::kBF16 : DType::kF16;
  p.checkpoint = checkpoint;
  return p;
}

// Inputs of several sequences, bf16 values kept as floats too.
struct Inputs {
  Inputs(const Problem& p, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal;
    auto fill = [&](std::vector<float>& x, int64_t n, bool rounded) {
      x.resize(static_cast<size_t>(n));
      for (float& v : x) {
        v = normal(rng);
        if (rounded) v = bf16_to_float(float_to_bf16(v));
      }
    };
    const int64_t n = kSequences * kTokens;
    fill(query, n * p.n_key_heads * p.key_dim, true);
    fill(key, n * p.n_key_heads * p.key_dim, true);
    fill(value, n * p.n_heads * p.value_dim, true);
    fill(gate, n * p.n_heads, false);
    fill(beta, n * p.n_heads, false);
    fill(a_log, p.n_heads, false);
    fill(dt_bias, p.n_heads, false);
    fill(skip, p.n_heads, false);
    for (float& x : dt_bias) x = x * 0.5f - 3.0f;
  }
  ref::TokenInputs token(const Problem& p, int sequence, int64_t t) const {
    const int64_t i = sequence * kTokens + t;
    return {query.data() + i * p.n_key_heads * p.key_dim,
            key.data() + i * p.n_key_heads * p.key_dim, value.data() + i * p.n_heads * p.value_dim,
            gate.data() + i * p.n_heads, beta.data() + i * p.n_heads};
  }
  std::vector<float> query, key, value, gate, beta, a_log, dt_bias, skip;
};

struct Result {
  std::vector<uint16_t> y;          // [sequence, token, head, value] bf16
  std::vector<uint8_t> checkpoint;  // the last stored ones
  std::vector<float> scale;
  std::vector<float> canonical;  // [sequence, head, value, key]
  int64_t checkpoint_at = 0;
};

// Runs all tokens with windows of at most `window`, of which a random number stands; tokens beyond
// are replaced by wrong ones, rejected and fed again.
Result run(const Problem& p, const Inputs& in, int window, uint64_t seed, bool rejects) {
  const auto planned = plan_cuda(p);
  EXPECT_NE(planned.plan, nullptr) << planned.reason;
  const CudaPlan& plan = *planned.plan;
  const int64_t keys = p.n_key_heads * p.key_dim, values = p.n_heads * p.value_dim;
  const int64_t r = p.grid.ring_rows;
  const int slots = kSequences + 2;
  DeviceBuffer checkpoint(plan.checkpoint_elements() * slots * dtype_bytes(p.checkpoint));
  DeviceBuffer scale(plan.scale_elements() * slots * 4);
  DeviceBuffer ring_key(slots * r * keys * 2), ring_value(slots * r * values * 2);
  DeviceBuffer ring_gate(slots * r * p.n_heads * 4), saturated(std::vector<int64_t>{0});
  DeviceBuffer a_log(in.a_log), dt_bias(in.dt_bias), skip(in.skip);
  const int64_t max_tokens = kSequences * window;
  DeviceBuffer q(max_tokens * keys * 2), k(max_tokens * keys * 2), v(max_tokens * values * 2);
  DeviceBuffer gate(max_tokens * p.n_heads * 4), beta(max_tokens * p.n_heads * 4);
  DeviceBuffer out(max_tokens * values * 2), rows_device(16 * sizeof(Row));

  StepArgs args;
  args.rows = static_cast<const Row*>(rows_device.data());
  args.query = {q.data(), keys};
  args.key = {k.data(), keys};
  args.value = {v.data(), values};
  args.gate = {gate.data(), p.n_heads};
  args.beta = {beta.data(), p.n_heads};
  args.a_log = static_cast<const float*>(a_log.data());
  args.dt_bias = static_cast<const float*>(dt_bias.data());
  args.skip = static_cast<const float*>(skip.data());
  args.out = {out.data(), values};
  args.checkpoint = checkpoint.data();
  args.checkpoint_slot_stride = plan.checkpoint_elements();
  args.scale = static_cast<float*>(scale.data());
  args.scale_slot_stride = plan.scale_elements();
  args.ring_key = {ring_key.data(), r * keys, keys};
  args.ring_value = {ring_value.data(), r * values, values};
  args.ring_gate = {ring_gate.data(), r * p.n_heads, p.n_heads};
  args.n_saturated = static_cast<int64_t*>(saturated.data());

  Result result;
  result.y.resize(static_cast<size_t>(kSequences * kTokens * values));
  std::vector<SequenceState> states;
  for (int i = 0; i < kSequences; ++i) states.push_back({0, 0, i + 1, kSequences - i});
  std::mt19937_64 rng(seed);
  auto bf16 = [](const std::vector<float>& x) {
    std::vector<uint16_t> bits;
    for (float f : x) bits.push_back(float_to_bf16(f));
    return bits;
  };
  for (;;) {
    std::vector<Row> rows;
    std::vector<int> owner, stand;
    std::vector<float> hq, hk, hv, hg, hb;
    int64_t n_tokens = 0;
    rows.push_back({0, 0, 0, 1, 0, -1, -1, -1});  // a skipped row
    owner.push_back(-1);
    stand.push_back(0);
    for (int i = 0; i < kSequences; ++i) {
      const SequenceState& s = states[i];
      if (s.n == kTokens) continue;
      const int t = static_cast<int>(std::min<int64_t>(window, kTokens - s.n));
      rows.push_back(
          {s.n, s.c, s.n, t, n_tokens, s.checkpoint_slot, s.checkpoint_slot, s.ring_slot});
      owner.push_back(i);
      const int accept = rejects ? static_cast<int>(rng() % (t + 1)) : t;
      stand.push_back(accept);
      for (int j = 0; j < t; ++j) {
        int64_t at = s.n + j;
        if (j >= accept) at = static_cast<int64_t>(rng() % kTokens);  // a wrong draft
        const ref::TokenInputs x = in.token(p, i, at);
        hq.insert(hq.end(), x.query, x.query + keys);
        hk.insert(hk.end(), x.key, x.key + keys);
        hv.insert(hv.end(), x.value, x.value + values);
        hg.insert(hg.end(), x.gate, x.gate + p.n_heads);
        hb.insert(hb.end(), x.beta, x.beta + p.n_heads);
        ++n_tokens;
      }
    }
    if (n_tokens == 0) break;
    q.upload(bf16(hq));
    k.upload(bf16(hk));
    v.upload(bf16(hv));
    gate.upload(hg);
    beta.upload(hb);
    rows_device.upload(rows);
    args.n_rows = static_cast<int32_t>(rows.size());
    plan.step(args, nullptr);
    cuda_check(cudaGetLastError(), "launch");
    const auto y = out.download<uint16_t>(n_tokens * values);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (owner[i] < 0) continue;
      std::memcpy(&result.y[static_cast<size_t>((owner[i] * kTokens + rows[i].n) * values)],
                  &y[static_cast<size_t>(rows[i].token * values)],
                  static_cast<size_t>(stand[i] * values) * 2);
      EXPECT_EQ(commit_step(p.grid, rows[i], stand[i], states[owner[i]]), Status::kOk);
    }
  }
  // Finish the folds, so that every run ends with the same checkpoints.
  std::vector<Row> rows;
  for (SequenceState& s : states) {
    rows.push_back({s.n, s.c, s.n, 0, 0, s.checkpoint_slot, s.checkpoint_slot, s.ring_slot});
    EXPECT_EQ(commit_step(p.grid, rows.back(), 0, s), Status::kOk);
  }
  rows_device.upload(rows);
  args.n_rows = kSequences;
  plan.step(args, nullptr);
  cuda_check(cudaDeviceSynchronize(), "step");
  result.checkpoint_at = states[0].c;
  const int64_t bytes = plan.checkpoint_elements() * dtype_bytes(p.checkpoint);
  for (const SequenceState& s : states) {
    const auto slot = checkpoint.download<uint8_t>(bytes, s.checkpoint_slot * bytes);
    const auto slot_scale =
        scale.download<float>(plan.scale_elements(), s.checkpoint_slot * plan.scale_elements() * 4);
    result.checkpoint.insert(result.checkpoint.end(), slot.begin(), slot.end());
    result.scale.insert(result.scale.end(), slot_scale.begin(), slot_scale.end());
    std::vector<float> canonical(static_cast<size_t>(plan.checkpoint_elements()));
    plan.export_checkpoint(slot.data(), slot_scale.data(), canonical.data());
    result.canonical.insert(result.canonical.end(), canonical.begin(), canonical.end());
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

class CudaStep : public testing::TestWithParam<std::tuple<Layer, DType>> {};

TEST_P(CudaStep, SameBitsForAllWindowsAndCloseToDouble) {
  const auto& [layer, checkpoint] = GetParam();
  const Inputs in(problem_of(layer, checkpoint, 4), 11);
  Result first;
  for (const int window : {1, 4, 8, 16}) {
    for (const bool rejects : {false, true}) {
      const Problem p = problem_of(layer, checkpoint, window);
      Result result = run(p, in, window, 5 + window, rejects);
      if (first.y.empty()) {
        first = result;
        std::vector<double> y, states;
        for (int i = 0; i < kSequences; ++i) {
          ref::Recurrence truth(p, {in.a_log.data(), in.dt_bias.data(), in.skip.data()});
          std::vector<double> at_grid;
          for (int64_t t = 0; t < kTokens; ++t) {
            const auto token = truth.append(in.token(p, i, t));
            y.insert(y.end(), token.begin(), token.end());
            if (t + 1 == result.checkpoint_at) at_grid = truth.state();
          }
          states.insert(states.end(), at_grid.begin(), at_grid.end());
        }
        std::vector<float> y_float;
        for (uint16_t bits : result.y) y_float.push_back(bf16_to_float(bits));
        const double y_error = relative_error(y, y_float);
        const double state_error = relative_error(states, result.canonical);
        std::printf("%s %s: y %.2e (bf16), state %.2e\n", layer.name, dtype_name(checkpoint),
                    y_error, state_error);
        EXPECT_LT(y_error, checkpoint == DType::kI8 ? 2e-2 : 3e-3);
        EXPECT_LT(state_error, checkpoint == DType::kI8 ? 2e-2 : 1e-3);
        continue;
      }
      EXPECT_EQ(first.y, result.y) << "window " << window << " rejects " << rejects;
      EXPECT_EQ(first.checkpoint, result.checkpoint) << "window " << window;
      EXPECT_EQ(first.scale, result.scale) << "window " << window;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaStep,
                         testing::Combine(testing::ValuesIn(kLayers),
                                          testing::Values(DType::kF32, DType::kF16, DType::kI8)));

}  // namespace
}  // namespace replayssm::test
