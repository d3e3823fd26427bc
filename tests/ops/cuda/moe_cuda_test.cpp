#include "ops/cuda/moe_cuda.h"

#include <algorithm>
#include <cmath>

#include "../moe_cases.h"
#include "device_fixture.h"
#include "fp8_weight.h"
#include "ops/cuda/elementwise_cuda.h"
#include "ops/cuda/norm_cuda.h"
#include "ops/ref/ref.h"

namespace replayssm::ops::cuda {
namespace {

TEST(MoeCuda, RoutesAsTheReference) {
  const Device device;
  const std::vector<float> bias = random_weights(512, 5);
  const DeviceBuffer dbias(bias);
  for (const Router& router : routers_to_try(bias)) {
    const int64_t n_tokens = 70, n = n_tokens * router.top_k;
    Tensor logits(DType::kF32, n_tokens, router.n_experts);
    logits.fill(static_cast<uint32_t>(router.n_experts), 2.0f);
    const DeviceTensor dlogits(logits, Place::kOdd);
    const DeviceBuffer experts(n * 4), weights(n * 4);
    Router on_device = router;
    if (router.bias != nullptr) on_device.bias = static_cast<const float*>(dbias.data());
    route(device.context(), on_device, dlogits.matrix(), static_cast<int32_t*>(experts.data()),
          static_cast<float*>(weights.data()));
    device.wait();
    const auto got = experts.download<int32_t>(n);
    const auto got_weights = weights.download<float>(n);
    for (int64_t t = 0; t < n_tokens; ++t) {
      std::vector<float> row;
      for (int64_t e = 0; e < router.n_experts; ++e) row.push_back(logits.get(t, e));
      const auto want = ref::route(router, row);
      for (size_t i = 0; i < want.size(); ++i) {
        const size_t at = static_cast<size_t>(t * router.top_k) + i;
        ASSERT_EQ(got[at], want[i].expert) << "token " << t << " choice " << i;
        EXPECT_NEAR(got_weights[at], want[i].weight, 1e-6 * want[i].weight);
      }
    }
  }
}

// Few values, so that most choices are ties; zeros of both signs among them.
TEST(MoeCuda, TiesGoToTheLowerExpert) {
  const Device device;
  const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, -INFINITY};
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const int32_t n_experts : {40, 256, 300}) {
      const int64_t n_tokens = 40;
      Router router;
      router.score = score;
      router.n_experts = n_experts;
      router.top_k = 5;
      std::mt19937 random(7);
      Tensor logits(DType::kF32, n_tokens, n_experts);
      for (int64_t t = 0; t < n_tokens; ++t) {
        for (int32_t e = 0; e < n_experts; ++e) logits.set(t, e, values[random() % 5]);
      }
      const DeviceTensor dlogits(logits, Place::kOdd);
      const DeviceBuffer experts(n_tokens * 5 * 4), weights(n_tokens * 5 * 4);
      route(device.context(), router, dlogits.matrix(), static_cast<int32_t*>(experts.data()),
            static_cast<float*>(weights.data()));
      device.wait();
      const auto got = experts.download<int32_t>(n_tokens * 5);
      for (int64_t t = 0; t < n_tokens; ++t) {
        std::vector<float> row;
        for (int32_t e = 0; e < n_experts; ++e) row.push_back(logits.get(t, e));
        const auto want = ref::route(router, row);
        for (size_t i = 0; i < 5; ++i) {
          ASSERT_EQ(got[static_cast<size_t>(t * 5) + i], want[i].expert)
              << n_experts << " experts, token " << t << " choice " << i;
        }
      }
    }
  }
}

// Choices of n_tokens, and their rows once sorted.
struct Sorted {
  Sorted(const Device& device, int64_t n_tokens, int32_t k, int32_t n, uint32_t seed)
      : top_k(k),
        n_experts(n),
        chosen(choices(n_tokens, k, n, seed)),
        experts(chosen),
        first_buffer((n + 1) * 4),
        row_buffer(n_tokens * k * 4) {
    sort_by_expert(device.context(), static_cast<const int32_t*>(experts.data()), n_tokens, k, n,
                   first(), rows());
    device.wait();
    begin = first_buffer.download<int32_t>(n + 1);
    row = row_buffer.download<int32_t>(n_tokens * k);
  }
  // Uneven: half of the experts get few or none.
  static std::vector<int32_t> choices(int64_t n_tokens, int32_t k, int32_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> out;
    for (int64_t t = 0; t < n_tokens; ++t) {
      std::vector<int32_t> mine;
      while (static_cast<int32_t>(mine.size()) < k) {
        const auto limit = static_cast<uint32_t>(random() % 4 == 0 ? n : (n + 1) / 2);
        const auto e = static_cast<int32_t>(random() % limit);
        if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
      }
      out.insert(out.end(), mine.begin(), mine.end());
    }
    return out;
  }
  int32_t* first() const { return static_cast<int32_t*>(first_buffer.data()); }
  int32_t* rows() const { return static_cast<int32_t*>(row_buffer.data()); }

  int32_t top_k, n_experts;
  std::vector<int32_t> chosen;
  DeviceBuffer experts, first_buffer, row_buffer;
  std::vector<int32_t> begin, row;
};

TEST(MoeCuda, SortsByExpertThenByToken) {
  const Device device;
  struct Case {
    int64_t n_tokens;
    int32_t top_k, n_experts;
  };
  for (const auto& [n_tokens, top_k, n_experts] :
       {Case{1, 6, 32}, Case{3, 6, 32}, Case{70, 6, 32}, Case{301, 7, 32}, Case{1, 1, 1},
        Case{1025, 7, 300}}) {
    const Sorted sorted(device, n_tokens, top_k, n_experts, 1);
    int32_t at = 0;
    for (int32_t e = 0; e < n_experts; ++e) {
      ASSERT_EQ(sorted.begin[static_cast<size_t>(e)], at);
      for (size_t i = 0; i < sorted.chosen.size(); ++i) {
        if (sorted.chosen[i] != e) continue;
        ASSERT_EQ(sorted.row[i], at++);
      }
    }
    ASSERT_EQ(sorted.begin[static_cast<size_t>(n_experts)], at);
  }
}

TEST(MoeCuda, SpreadsSumsAndGates) {
  const Device device;
  const int64_t n = 37;
  const Sorted sorted(device, n, 3, 8, 2);
  Tensor x(DType::kBF16, n, 72), z(DType::kF32, 3 * n, 70), stream(DType::kF32, n, 70);
  Tensor gate(DType::kF32, n, 1), shared(DType::kF32, n, 70);
  for (Tensor* t : {&x, &z, &stream, &gate, &shared}) t->fill(3);
  const std::vector<float> weights = random_weights(3 * n, 4);
  const DeviceBuffer dweights(weights);
  const DeviceTensor dx(x, Place::kPieces),
      spread = output(DType::kBF16, 3 * n, 72, Place::kPieces);
  const DeviceTensor dz(z, Place::kOdd), dstream(stream, Place::kOdd), dgate(gate, Place::kOdd);
  const DeviceTensor dshared(shared, Place::kOdd);
  spread_rows(device.context(), dx.matrix(), sorted.rows(), 3, spread.matrix());
  sum_rows(device.context(), dz.matrix(), sorted.rows(), static_cast<const float*>(dweights.data()),
           3, dstream.matrix(), true, {dshared.matrix(), dgate.matrix()});
  Tensor got = spread.get(), sum = dstream.get();
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t c = 0; c < 70; ++c) {
      double want = stream.get(t, c) + shared.get(t, c) / (1.0 + std::exp(-gate.get(t, 0)));
      for (int64_t i = 0; i < 3; ++i) {
        const auto at = static_cast<size_t>(3 * t + i);
        want += static_cast<double>(weights[at]) * z.get(sorted.row[at], c);
        ASSERT_EQ(got.get(sorted.row[at], c), x.get(t, c));
      }
      ASSERT_NEAR(sum.get(t, c), want, 1e-5);
    }
  }
}

// Sums with the norm of what comes next have the bits of the two kernels that they replace.
TEST(MoeCuda, SumsThenNorms) {
  const Device device;
  const CudaContext& context = device.context();
  const int64_t n = 5;
  const Sorted sorted(device, n, 3, 8, 2);
  for (const int64_t cols : {72, 2048, 2688}) {
    const std::vector<float> factors = random_weights(3 * n, 4);
    const DeviceBuffer dfactors(factors), dweight(random_weights(cols, 5));
    const auto* const weights = static_cast<const float*>(dfactors.data());
    const NormWeight weight{static_cast<const float*>(dweight.data()), true};
    Tensor z(DType::kF32, 3 * n, cols), stream(DType::kF32, n, cols);
    Tensor gate(DType::kF32, n, 1), shared(DType::kF32, n, cols);
    uint32_t seed = 3;
    for (Tensor* t : {&z, &stream, &gate, &shared}) t->fill(seed++);
    std::vector<Tensor> streams, normed;
    for (const Place place : kPlaces) {
      const DeviceTensor dz(z, place), one(stream, place), two(stream, place), dgate(gate, place);
      const DeviceTensor dshared(shared, place), y = output(DType::kBF16, n, cols, place);
      const SharedOutput other{dshared.matrix(), dgate.matrix()};
      sum_rows(context, dz.matrix(), sorted.rows(), weights, 3, two.matrix(), true, other);
      rms_norm(context, two.matrix(), weight, 1e-6f, y.matrix());
      streams.push_back(two.get());
      normed.push_back(y.get());
      sum_rows(context, dz.matrix(), sorted.rows(), weights, 3, one.matrix(), true, other,
               {weight, 1e-6f, y.matrix()});
      streams.push_back(one.get());
      normed.push_back(y.get());
    }
    for (size_t i = 1; i < streams.size(); ++i) {
      expect_same(streams[i], streams[0]);
      expect_same(normed[i], normed[0]);
    }
  }
}

// A quantised matrix in memory of its own, and its bytes.
struct DeviceQuantised {
  DeviceQuantised(int64_t rows, int64_t n_in)
      : bytes(quantised_bytes(rows, n_in)),
        memory(std::vector<unsigned char>(static_cast<size_t>(bytes), 0)),
        at(quantised_at(memory.data(), rows, n_in)) {}
  std::vector<unsigned char> get() const { return memory.download<unsigned char>(bytes); }

  int64_t bytes;
  DeviceBuffer memory;
  Quantised at;
};

void quantise_all(const Device& device, int64_t n_in) {
  const CudaContext& context = device.context();
  const int64_t n = 37;
  const Sorted sorted(device, n, 3, 8, 2);
  Tensor x(DType::kBF16, n, 2 * n_in);
  x.fill(6, 3.0f);
  const DeviceTensor dx(x, Place::kPieces);
  const ConstMatrix gate = dx.matrix().slice_cols(0, n_in), up = dx.matrix().slice_cols(n_in, n_in);
  for (const WeightType type : {WeightType::kFp8Row, WeightType::kFp8Block}) {
    const DeviceTensor silu = output(DType::kBF16, n, n_in, Place::kPieces);
    const DeviceTensor square = output(DType::kBF16, n, n_in, Place::kPieces);
    const DeviceTensor spread = output(DType::kBF16, 3 * n, n_in, Place::kPieces);
    silu_mul(context, gate, up, silu.matrix());
    relu2(context, gate, square.matrix());
    spread_rows(context, gate, sorted.rows(), 3, spread.matrix());
    const DeviceQuantised want_silu(n, n_in), want_square(n, n_in), want_spread(3 * n, n_in);
    quantise(context, type, silu.matrix(), want_silu.at);
    quantise(context, type, square.matrix(), want_square.at);
    quantise(context, type, spread.matrix(), want_spread.at);
    const DeviceQuantised got_silu(n, n_in), got_square(n, n_in), got_spread(3 * n, n_in);
    quantise_silu_mul(context, type, gate, up, got_silu.at);
    quantise_relu2(context, type, gate, got_square.at);
    quantise_spread(context, type, gate, sorted.rows(), 3, got_spread.at);
    device.wait();
    EXPECT_EQ(got_silu.get(), want_silu.get());
    EXPECT_EQ(got_square.get(), want_square.get());
    // Rows that pad the count have scales of their own.
    const auto got = got_spread.get(), want = want_spread.get();
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + 3 * n * n_in, want.begin()));
    const auto scales = [&](const std::vector<unsigned char>& all) {
      const auto* const at = reinterpret_cast<const float*>(
          all.data() + (got_spread.at.rows * n_in + 255) / 256 * 256);
      return std::vector<float>(at, at + 3 * n);
    };
    EXPECT_EQ(scales(got), scales(want));
  }
}

// What is quantised on the way has the bits of two steps.
TEST(MoeCuda, QuantisesActivationsAndSpreadRows) {
  const Device device;
  for (const int64_t n_in : {208, 16400}) quantise_all(device, n_in);
}

void run_experts(const CudaContext& context, const ExpertsCuda& experts, const int32_t* first,
                 ConstMatrix x, Matrix y) {
  const LinearCuda& w = experts.stack;
  if (w.type == WeightType::kBF16) return expert_linear(context, experts, first, x, y);
  const Quantised quantised = quantised_at(context.workspace(), x.rows, w.n_in);
  quantise(context, w.type, x, quantised);
  expert_linear(context, experts, first, quantised, y);
}

// Every type of weight against the formula; and rows that have the bits that they have alone.
TEST(MoeCuda, ExpertsMatchReferenceWhateverTheNumberOfRows) {
  const Device device;
  const CudaContext& context = device.context();
  constexpr int32_t kExperts = 6;
  for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Row, WeightType::kFp8Block}) {
    for (const int64_t n_in : {64, 384, 448}) {
      const int64_t n_out = 144;
      std::vector<Fp8Weight> fp8;
      Tensor wide(DType::kBF16, kExperts * n_out, n_in);
      wide.fill(1);
      std::vector<unsigned char> bytes;
      std::vector<float> scales;
      for (int32_t e = 0; e < kExperts; ++e) {
        if (type == WeightType::kBF16) {
          for (int64_t o = 0; o < n_out; ++o) {
            const auto* row = static_cast<const unsigned char*>(wide.matrix().at(e * n_out + o));
            bytes.insert(bytes.end(), row, row + n_in * 2);
          }
        } else {
          fp8.emplace_back(type, n_out, n_in, static_cast<uint32_t>(e));
          bytes.insert(bytes.end(), fp8.back().bytes.begin(), fp8.back().bytes.end());
          scales.insert(scales.end(), fp8.back().scales.begin(), fp8.back().scales.end());
        }
      }
      const DeviceBuffer dbytes(bytes), dscales(scales);
      const ExpertsCuda experts{
          {dbytes.data(), type, n_out, n_in, static_cast<const float*>(dscales.data())}, kExperts};
      // Experts of 0, 1, 8, 13, 32 and 71 rows.
      const std::vector<int32_t> first = {0, 0, 1, 9, 22, 54, 125};
      const DeviceBuffer dfirst(first);
      Tensor x(DType::kBF16, 125, n_in);
      x.fill(2, 2.0f);
      const DeviceTensor dx(x, Place::kPieces);
      const DeviceTensor y = output(DType::kF32, 125, n_out, Place::kOdd);
      run_experts(context, experts, static_cast<const int32_t*>(dfirst.data()), dx.matrix(),
                  y.matrix());
      Tensor all = y.get();
      std::vector<double> truth;
      for (int32_t e = 0; e < kExperts; ++e) {
        for (int32_t r = first[static_cast<size_t>(e)]; r < first[static_cast<size_t>(e) + 1];
             ++r) {
          for (int64_t o = 0; o < n_out; ++o) {
            double sum = 0.0;
            for (int64_t i = 0; i < n_in; ++i) {
              const float w = type == WeightType::kBF16 ? wide.get(e * n_out + o, i)
                                                        : fp8[static_cast<size_t>(e)].get(o, i);
              sum += static_cast<double>(w) * static_cast<double>(x.get(r, i));
            }
            truth.push_back(sum);
          }
        }
      }
      // FP8: the rounding of x to E4M3 is what remains.
      EXPECT_LT(nmse(all, truth), type == WeightType::kBF16 ? 1e-9 : 1e-3)
          << "type " << static_cast<int>(type) << " n_in " << n_in;
      for (const int32_t r : {0, 1, 8, 9, 21, 40, 54, 85, 86, 124}) {
        std::vector<int32_t> one(kExperts + 1);
        for (int32_t e = 0; e < kExperts; ++e) {
          one[static_cast<size_t>(e) + 1] = first[static_cast<size_t>(e) + 1] > r ? 1 : 0;
        }
        const DeviceBuffer done(one);
        const DeviceTensor alone = output(DType::kF32, 1, n_out, Place::kOdd);
        run_experts(context, experts, static_cast<const int32_t*>(done.data()),
                    dx.matrix().slice_rows(r, 1), alone.matrix());
        Tensor got = alone.get();
        EXPECT_TRUE(same_row(got, 0, all, r)) << "row " << r;
      }
    }
  }
}

}  // namespace
}  // namespace replayssm::ops::cuda
