// Dense ops against what the machine can do: GEMV against the read bandwidth measured beside it,
// GEMM against oneDNN, decode attention in GB/s of cache.
//
//   bench_ops [--threads N] [--seconds S] [--json FILE] [--only linear|quant|attention|small]
//
// Weights and caches rotate over more memory than the last-level cache holds. Contenders take turns
// and the best round of each counts: other load on the machine then hurts both alike.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/ops/onednn.h"
#include "core/error.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/quant.h"
#include "ops/sample.h"
#include "replay/convert.h"

namespace replayssm::bench {
namespace {

using ops::ConstHeads;
using ops::Context;
using ops::Heads;
using ops::Linear;

constexpr int64_t kRotate = int64_t{160} << 20;

struct Options {
  int threads = 0;
  double seconds = 0.4;  // a case and contender
  std::string json;
  std::string only;  // one section
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void fill(Buffer& buffer, DType dtype, float spread) {
  uint32_t state = 12345;
  const auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * spread;
  };
  if (dtype == DType::kBF16) {
    for (size_t i = 0; i < buffer.bytes() / 2; ++i)
      buffer.as<uint16_t>()[i] = float_to_bf16(next());
  } else {
    for (size_t i = 0; i < buffer.bytes() / 4; ++i) buffer.as<float>()[i] = next();
  }
}

class ReadBandwidth {
 public:
  explicit ReadBandwidth(ThreadPool& pool) : pool_(pool), data_(kRotate) {
    fill(data_, DType::kF32, 1.0f);
  }
  // GB/s of the next `bytes`, rotating: as much as the op beside it reads, so that a slice of the
  // scheduler hurts both alike.
  double pass(int64_t bytes) {
    const int64_t words = bytes / 8;
    if (next_ + words > static_cast<int64_t>(data_.bytes()) / 8) next_ = 0;
    const uint64_t* from = data_.as<uint64_t>() + next_;
    next_ += words;
    const int64_t pieces = 8 * pool_.size();
    std::vector<uint64_t> sums(static_cast<size_t>(pieces));
    const double start = now();
    pool_.parallel_for(pieces, [&](int64_t index, int) {
      const uint64_t* p = from + words / pieces * index;
      uint64_t sum[8] = {};
      for (int64_t i = 0; i + 8 <= words / pieces; i += 8) {
        __builtin_prefetch(p + i + 512);
        for (int64_t j = 0; j < 8; ++j) sum[j] += p[i + j];
      }
      for (const uint64_t s : sum) sums[static_cast<size_t>(index)] += s;
    });
    const double seconds = now() - start;
    for (const uint64_t s : sums) sink_ = sink_ + s;
    return static_cast<double>(bytes) / seconds / 1e9;
  }

 private:
  ThreadPool& pool_;
  Buffer data_;
  int64_t next_ = 0;
  volatile uint64_t sink_ = 0;
};

// The best time of one call. `calls` is a set that rotates over memory.
template <typename Call>
double best_round(double seconds, int64_t n_calls, const Call& call) {
  // A round takes at least half a millisecond, so that the clock and a fork-join do not matter.
  const double begin = now();
  call(0);
  const int64_t repeat = std::max<int64_t>(1, static_cast<int64_t>(5e-4 / (now() - begin + 1e-9)));
  double best = 1e30;
  int64_t next = 0;
  const double start = now();
  do {
    const double t = now();
    for (int64_t i = 0; i < repeat; ++i) call(next++ % n_calls);
    best = std::min(best, (now() - t) / static_cast<double>(repeat));
  } while (now() - start < seconds);
  return best;
}

// Lets the spinning threads of the last contender fall asleep.
void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

struct LinearCase {
  DType weight;
  DType x;
  int64_t n_in;
  int64_t n_out;
};

class Suite {
 public:
  Suite(const Options& options, ThreadPool& pool)
      : options_(options), pool_(pool), context_(pool), bandwidth_(pool) {}

  void run() {
    std::printf("%s%s, %d threads, oneDNN %s\n", isa_name(context_.isa()),
                context_.bf16_dot() ? " with bf16 dot" : "", pool_.size(),
                *onednn_version() ? onednn_version() : "missing");
    report_["isa"] = isa_name(context_.isa());
    report_["bf16_dot"] = context_.bf16_dot();
    report_["threads"] = pool_.size();
    report_["onednn"] = onednn_version();
    const auto section = [&](const char* name, void (Suite::*run)()) {
      if (options_.only.empty() || options_.only == name) (this->*run)();
    };
    section("linear", &Suite::linear);
    section("quant", &Suite::quant);
    section("attention", &Suite::attention);
    section("small", &Suite::small);
    if (!options_.json.empty()) {
      std::ofstream file(options_.json);
      file << report_.dump(2) << '\n';
      if (!file) fail("cannot write ", options_.json);
    }
  }

 private:
  double read_gbs(double seconds, int64_t bytes) {
    bytes = std::clamp(bytes, int64_t{1} << 20, kRotate);
    double best = 0.0;
    const double start = now();
    do {
      best = std::max(best, bandwidth_.pass(bytes));
    } while (now() - start < seconds);
    return best;
  }

  void linear() {
    const LinearCase cases[] = {
        {DType::kBF16, DType::kBF16, 1024, 1024}, {DType::kBF16, DType::kBF16, 2560, 2560},
        {DType::kBF16, DType::kBF16, 4096, 4096}, {DType::kBF16, DType::kBF16, 2560, 9216},
        {DType::kBF16, DType::kBF16, 9216, 2560}, {DType::kBF16, DType::kF32, 1024, 1024},
        {DType::kBF16, DType::kF32, 4096, 4096},  {DType::kBF16, DType::kF32, 9216, 2560},
        {DType::kF32, DType::kF32, 1024, 1024},   {DType::kF32, DType::kF32, 2560, 2560},
        {DType::kF32, DType::kF32, 4096, 4096},   {DType::kF32, DType::kF32, 9216, 2560}};
    std::printf("%-10s %5s %5s %4s %9s %8s %8s %7s %7s %7s\n", "w x", "n_in", "n_out", "rows", "us",
                "GB/s", "GF/s", "read", "% read", "% 1DNN");
    for (const LinearCase& c : cases) {
      const int64_t element = dtype_bytes(c.weight);
      const int64_t bytes = c.n_in * c.n_out * element;
      Buffer source(static_cast<size_t>(bytes));
      fill(source, c.weight, 1.0f);
      std::vector<Linear> weights;
      for (int64_t total = 0; total < kRotate; total += bytes) {
        weights.push_back(Linear::pack({source.data(), c.weight, c.n_out, c.n_in, c.n_in}));
      }
      for (const int64_t rows : {1, 4, 16, 64, 256}) linear_rows(c, source, weights, rows);
    }
  }

  void linear_rows(const LinearCase& c, const Buffer& source, const std::vector<Linear>& weights,
                   int64_t rows) {
    const int64_t bytes = c.n_in * c.n_out * dtype_bytes(c.weight);
    Buffer x(static_cast<size_t>(rows * c.n_in * dtype_bytes(c.x)));
    Buffer y(static_cast<size_t>(rows * c.n_out * 4));
    fill(x, c.x, 1.0f);
    const auto ours = [&](int64_t i) {
      weights[static_cast<size_t>(i)].run(context_, {x.data(), c.x, rows, c.n_in, c.n_in},
                                          {y.data(), DType::kF32, rows, c.n_out, c.n_out});
    };
    // oneDNN multiplies bf16 by bf16 and fp32 by fp32; a mixed case is measured against fp32.
    const bool bf16 = c.weight == DType::kBF16 && c.x == DType::kBF16;
    std::vector<std::unique_ptr<OneDnnMatmul>> theirs;
    Buffer widened;
    if (rows > 1) {
      const void* weight = source.data();
      if (!bf16 && c.weight == DType::kBF16) {
        widened = Buffer(static_cast<size_t>(c.n_in * c.n_out * 4));
        fill(widened, DType::kF32, 1.0f);
        weight = widened.data();
      }
      for (int64_t total = 0; total < kRotate; total += bytes) {
        auto matmul = onednn_matmul(bf16, rows, c.n_in, c.n_out, x.data(), weight, y.as<float>());
        if (matmul == nullptr) break;
        theirs.push_back(std::move(matmul));
      }
    }
    double best = 1e30;
    double other = 1e30;
    double read = 0.0;
    const int64_t n = static_cast<int64_t>(weights.size());
    for (int turn = 0; turn < 4; ++turn) {
      settle();
      best = std::min(best, best_round(options_.seconds / 4, n, ours));
      if (rows == 1) {
        read = std::max(read, read_gbs(options_.seconds / 4, bytes));
      } else if (!theirs.empty()) {
        settle();
        other =
            std::min(other, best_round(options_.seconds / 4, static_cast<int64_t>(theirs.size()),
                                       [&](int64_t i) { theirs[static_cast<size_t>(i)]->run(); }));
      }
    }
    const double gbs = static_cast<double>(bytes) / best / 1e9;
    const double gfs = 2.0 * static_cast<double>(rows * c.n_in * c.n_out) / best / 1e9;
    std::printf("%-4s %-5s %5ld %5ld %4ld %9.1f %8.1f %8.1f ", dtype_name(c.weight),
                dtype_name(c.x), c.n_in, c.n_out, rows, best * 1e6, gbs, gfs);
    nlohmann::json row = {{"weight", dtype_name(c.weight)},
                          {"x", dtype_name(c.x)},
                          {"n_in", c.n_in},
                          {"n_out", c.n_out},
                          {"rows", rows},
                          {"us", best * 1e6},
                          {"gb_s", gbs},
                          {"gf_s", gfs}};
    if (rows == 1) {
      std::printf("%7.1f %6.0f%%", read, 100.0 * gbs / read);
      row["read_gb_s"] = read;
    } else if (!theirs.empty()) {
      std::printf("%7s %7s %6.0f%%", "", "", 100.0 * other / best);
      row["onednn_us"] = other * 1e6;
    }
    std::printf("\n");
    std::fflush(stdout);
    report_["linear"].push_back(row);
  }

  // Weights of few bits: GB/s of what is kept in memory, beside the read bandwidth; and the time
  // against bf16 weights of the same shape.
  void quant() {
    using ops::Codes;
    using ops::GroupMin;
    using ops::GroupScale;
    struct Kind {
      const char* name;
      ops::QuantFormat format;
    };
    const Kind kinds[] = {
        {"q4_0", {Codes::kNibble, {}, 32, GroupScale::kF16, GroupMin::kNone, false, false}},
        {"q4_k", {Codes::kNibble, {}, 32, GroupScale::kU8, GroupMin::kSuper, true, false}},
        {"nvfp4", {Codes::kNibble, {}, 16, GroupScale::kE4m3, GroupMin::kNone, false, true}},
        {"int4 128", {Codes::kNibble, {}, 128, GroupScale::kBF16, GroupMin::kNone, false, false}},
        {"q5_k", {Codes::kInt6, {}, 32, GroupScale::kU8, GroupMin::kSuper, true, false}},
        {"q6_k", {Codes::kInt6, {}, 16, GroupScale::kI8, GroupMin::kNone, true, false}},
        {"q8_0", {Codes::kInt8, {}, 32, GroupScale::kF16, GroupMin::kNone, false, false}},
        {"fp8", {Codes::kE4m3, {}, 128, GroupScale::kNone, GroupMin::kNone, false, true}}};
    constexpr int64_t kIn = 4096, kOut = 4096;
    std::printf("\nfew bits, %ld x %ld, x in bf16\n%-8s %-12s %4s %9s %8s %7s %7s %8s %7s\n", kOut,
                kIn, "isa", "weight", "rows", "us", "GB/s", "read", "% read", "GF/s", "x bf16");
    for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
      if (!isa_supported(isa)) continue;
      const Context context(pool_, isa, isa == Isa::kAvx512 && ops::bf16_dot_supported());
      std::vector<double> bf16_seconds;
      Buffer plain(static_cast<size_t>(kIn * kOut * 2));
      fill(plain, DType::kBF16, 1.0f);
      quant_rows(context, "bf16", bf16_seconds,
                 [&] { return Linear::pack({plain.data(), DType::kBF16, kOut, kIn, kIn}); });
      for (const Kind& kind : kinds) {
        const ops::QuantMatrix matrix{
            kind.format, kOut, kIn, [&](int64_t row, ops::QuantRow& to) {
              const auto bits = static_cast<uint8_t>(row);
              for (int64_t i = 0; i < kIn; ++i) to.codes[i] = static_cast<uint8_t>((i + bits) % 16);
              for (int64_t g = 0; g < kIn / kind.format.group * kind.format.scale_bytes(); ++g) {
                to.scales[g] = std::byte{0x38};
              }
              for (int64_t b = 0; kind.format.super && b < kIn / ops::kSuperBlock; ++b) {
                to.super[b] = to.super_min[b] = 0x2800;
              }
            }};
        quant_rows(context, kind.name, bf16_seconds,
                   [&] { return Linear::pack(matrix, nullptr, &pool_); });
      }
    }
  }

  // The first call is bf16's: it fills `bf16_seconds`, which the others are measured against.
  void quant_rows(const Context& context, const char* name, std::vector<double>& bf16_seconds,
                  const std::function<Linear()>& pack) {
    std::vector<Linear> weights;
    for (int64_t total = 0; total < kRotate; total += static_cast<int64_t>(weights[0].bytes())) {
      weights.push_back(pack());
    }
    const int64_t n_in = weights[0].n_in(), n_out = weights[0].n_out();
    const auto bytes = static_cast<int64_t>(weights[0].bytes());
    const bool first = bf16_seconds.empty();
    size_t index = 0;
    for (const int64_t rows : {1, 4, 8, 32, 256}) {
      Buffer x(static_cast<size_t>(rows * n_in * 2));
      Buffer y(static_cast<size_t>(rows * n_out * 4));
      fill(x, DType::kBF16, 1.0f);
      double best = 1e30, read = 0.0;
      for (int turn = 0; turn < 4; ++turn) {
        settle();
        best = std::min(best, best_round(options_.seconds / 4, static_cast<int64_t>(weights.size()),
                                         [&](int64_t i) {
                                           weights[static_cast<size_t>(i)].run(
                                               context, {x.data(), DType::kBF16, rows, n_in, n_in},
                                               {y.data(), DType::kF32, rows, n_out, n_out});
                                         }));
        if (rows == 1) read = std::max(read, read_gbs(options_.seconds / 4, bytes));
      }
      if (first) bf16_seconds.push_back(best);
      const double gbs = static_cast<double>(bytes) / best / 1e9;
      const double gfs = 2.0 * static_cast<double>(rows * n_in * n_out) / best / 1e9;
      const double speedup = bf16_seconds[index++] / best;
      std::printf("%-8s %-12s %4ld %9.1f %8.1f ", isa_name(context.isa()), name, rows, best * 1e6,
                  gbs);
      if (rows == 1) {
        std::printf("%7.1f %6.0f%%", read, 100.0 * gbs / read);
      } else {
        std::printf("%7s %7s", "", "");
      }
      std::printf(" %8.1f %6.2fx\n", gfs, speedup);
      std::fflush(stdout);
      report_["quant"].push_back({{"isa", isa_name(context.isa())},
                                  {"weight", name},
                                  {"rows", rows},
                                  {"us", best * 1e6},
                                  {"gb_s", gbs},
                                  {"read_gb_s", read},
                                  {"gf_s", gfs},
                                  {"over_bf16", speedup}});
    }
  }

  void attention() {
    struct Case {
      int64_t n_heads, n_kv_heads, dim, batch, length, window;
      DType cache;
    };
    std::printf("\nattention\n%-22s %5s %6s %4s %9s %8s %7s %7s %8s\n", "heads", "batch", "length",
                "T", "us", "GB/s", "read", "% read", "GF/s");
    for (const Case& c :
         {Case{8, 2, 64, 1, 4096, 1, DType::kBF16}, Case{16, 4, 256, 1, 8192, 1, DType::kBF16},
          Case{40, 8, 128, 1, 8192, 1, DType::kBF16}, Case{16, 4, 256, 8, 2048, 1, DType::kBF16},
          Case{16, 4, 256, 8, 2048, 4, DType::kBF16}, Case{16, 4, 256, 1, 8192, 1, DType::kF32},
          Case{16, 4, 256, 1, 512, 512, DType::kBF16},
          Case{16, 4, 256, 1, 2048, 512, DType::kBF16}}) {
      const ops::KvShape shape{static_cast<int32_t>(c.n_kv_heads), static_cast<int32_t>(c.dim),
                               c.cache};
      const int64_t pages_each = ops::pages_for(c.length);
      const int64_t used = c.batch * pages_each;
      const int64_t copies = std::max<int64_t>(1, kRotate / (used * shape.page_bytes()));
      Buffer cache(static_cast<size_t>(copies * used * shape.page_bytes()));
      fill(cache, c.cache, 1.0f);
      const ops::KvPool pool{cache.data(), shape.page_bytes()};
      // Pages in an order with no pattern.
      std::vector<int32_t> pages(static_cast<size_t>(copies * used));
      for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
      uint32_t state = 1;
      for (size_t i = pages.size() - 1; i > 0; --i) {
        state = state * 1664525u + 1013904223u;
        std::swap(pages[i], pages[state % (i + 1)]);
      }
      const int64_t tokens = c.batch * c.window;
      const int64_t cols = c.n_heads * c.dim;
      Buffer q(static_cast<size_t>(tokens * cols * 4));
      Buffer out(static_cast<size_t>(tokens * cols * 4));
      fill(q, DType::kF32, 1.0f);
      const auto call = [&](int64_t copy) {
        std::vector<ops::AttentionRow> rows;
        for (int64_t b = 0; b < c.batch; ++b) {
          rows.push_back({pages.data() + copy * used + b * pages_each, c.length - c.window,
                          static_cast<int32_t>(c.window), b * c.window});
        }
        ops::attention(context_, shape, pool, rows.data(), c.batch, 0.0625f,
                       ConstHeads{q.data(), DType::kF32, tokens, c.n_heads, c.dim, cols, c.dim},
                       Heads{out.data(), DType::kF32, tokens, c.n_heads, c.dim, cols, c.dim});
      };
      const int64_t bytes = c.batch * c.length * c.n_kv_heads * c.dim * 2 * dtype_bytes(c.cache);
      double best = 1e30;
      double read = 0.0;
      for (int turn = 0; turn < 4; ++turn) {
        best = std::min(best, best_round(options_.seconds / 4, copies, call));
        read = std::max(read, read_gbs(options_.seconds / 4, bytes));
      }
      const double pairs =
          static_cast<double>(c.batch * c.window) *
          (static_cast<double>(c.length) - 0.5 * static_cast<double>(c.window - 1));
      const double gfs = 4.0 * pairs * static_cast<double>(cols) / best / 1e9;
      const double gbs = static_cast<double>(bytes) / best / 1e9;
      std::printf("%2ld/%ld x %-3ld %-11s %5ld %6ld %4ld %9.1f %8.1f %7.1f %6.0f%% %8.1f\n",
                  c.n_heads, c.n_kv_heads, c.dim, dtype_name(c.cache), c.batch, c.length, c.window,
                  best * 1e6, gbs, read, 100.0 * gbs / read, gfs);
      std::fflush(stdout);
      report_["attention"].push_back({{"n_heads", c.n_heads},
                                      {"n_kv_heads", c.n_kv_heads},
                                      {"head_dim", c.dim},
                                      {"cache", dtype_name(c.cache)},
                                      {"batch", c.batch},
                                      {"length", c.length},
                                      {"window", c.window},
                                      {"us", best * 1e6},
                                      {"gb_s", gbs},
                                      {"read_gb_s", read},
                                      {"gf_s", gfs}});
    }
  }

  void timed(const char* name, const std::function<void()>& call) {
    const double best = best_round(options_.seconds, 1, [&](int64_t) { call(); });
    std::printf("%-40s %9.2f us\n", name, best * 1e6);
    report_["small"].push_back({{"name", name}, {"us", best * 1e6}});
  }

  // What a small model's token and a large model's sampler cost; all in cache.
  void small() {
    std::printf("\nsmall ops\n");
    Buffer a(size_t{1} << 20);
    Buffer b(size_t{1} << 20);
    Buffer c(size_t{1} << 20);
    fill(a, DType::kF32, 4.0f);
    fill(b, DType::kF32, 4.0f);
    const auto row = [](Buffer& buffer, int64_t cols) {
      return ops::Matrix{buffer.data(), DType::kF32, 1, cols, cols};
    };
    for (const auto& [n_in, n_out] : {std::pair<int64_t, int64_t>{256, 256}, {256, 4096}}) {
      const Linear linear = Linear::pack({a.data(), DType::kBF16, n_out, n_in, 64});
      const std::string name = concat("linear bf16 x fp32, ", n_in, " -> ", n_out, ", 1 row");
      timed(name.c_str(), [&] { linear.run(context_, row(b, n_in), row(c, n_out)); });
    }
    timed("rms_norm 256, 1 row",
          [&] { ops::rms_norm(context_, row(b, 256), {}, 1e-6f, row(c, 256)); });
    timed("rms_norm 4096, 1 row",
          [&] { ops::rms_norm(context_, row(b, 4096), {}, 1e-6f, row(c, 4096)); });
    timed("silu_mul 9216, 1 row",
          [&] { ops::silu_mul(context_, row(a, 9216), row(b, 9216), row(c, 9216)); });
    for (const int64_t n_vocab : {int64_t{4096}, int64_t{248320}}) {
      ops::Sampler sampler(context_, n_vocab);
      int64_t position = 0;
      for (const ops::SamplerParams& params :
           {ops::SamplerParams{}, ops::SamplerParams{1.0f, 0, 1.0f, 0.0f, 1},
            ops::SamplerParams{0.7f, 20, 0.9f, 0.0f, 1}}) {
        const std::string name = concat("sample ", n_vocab, ", temperature ", params.temperature,
                                        ", top_k ", params.top_k);
        timed(name.c_str(), [&] { sampler.sample(b.as<float>(), params, position++); });
      }
    }
  }

  Options options_;
  ThreadPool& pool_;
  Context context_;
  ReadBandwidth bandwidth_;
  nlohmann::json report_;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (i + 1 >= argc) fail(flag, ": a flag of bench_ops takes a value");
    const std::string value = argv[++i];
    if (flag == "--threads") {
      options.threads = std::atoi(value.c_str());
    } else if (flag == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else if (flag == "--json") {
      options.json = value;
    } else if (flag == "--only") {
      options.only = value;
    } else {
      fail(flag, ": bench_ops knows --threads, --seconds, --json and --only");
    }
  }
  return options;
}

}  // namespace
}  // namespace replayssm::bench

int main(int argc, char** argv) {
  try {
    const replayssm::bench::Options options = replayssm::bench::parse(argc, argv);
    replayssm::ThreadPool pool(options.threads);
    replayssm::bench::Suite(options, pool).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
