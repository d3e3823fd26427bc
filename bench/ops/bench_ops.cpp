// Dense ops against what the machine can do: GEMV against the read bandwidth measured beside it,
// GEMM against oneDNN, decode attention in GB/s of cache.
//
//   bench_ops [--threads N] [--seconds S] [--json FILE]
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
    linear();
    attention();
    small();
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
    } else {
      fail(flag, ": bench_ops knows --threads, --seconds and --json");
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
