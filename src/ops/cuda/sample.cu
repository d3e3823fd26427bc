#include "ops/cuda/device.cuh"
#include "ops/cuda/sample_cuda.h"
#include "ops/gumbel.h"

namespace replayssm::ops::cuda {
namespace {

// Weights e^{(logit - max) / temperature} are counted in integer units of 2^-40, called masses. A
// sum of integers does not depend on its order, so a draw does not depend on the number of threads.
// The rounding is less than 1e-12 per token.
constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr float kUnits = 1099511627776.0f;

// Bits whose unsigned order is that of the floats.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 as +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

constexpr uint64_t kBadKey = ~uint64_t{0};  // the row has a NaN or +inf
constexpr uint32_t kNoneKey = 0x007fffffu;  // ordered(-inf)

// The key of a logit: larger is better, then the lower index.
__device__ __forceinline__ uint64_t key_of(float x, int64_t i) {
  if (!(x < INFINITY)) return kBadKey;
  return uint64_t{ordered(x)} << 32 | (0xffffffffu - static_cast<uint32_t>(i));
}
__device__ __forceinline__ int32_t index_of(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

template <typename T, typename Op>
__device__ T warp_reduce(T x, const Op& op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}
// The same value in every thread. work: kWarps elements, free before and after.
template <typename T, typename Op>
__device__ T block_reduce(T x, T* work, const Op& op) {
  x = warp_reduce(x, op);
  if (threadIdx.x % 32 == 0) work[threadIdx.x / 32] = x;
  __syncthreads();
  x = warp_reduce(work[threadIdx.x % 32], op);
  __syncthreads();
  return x;
}
__device__ __forceinline__ uint64_t larger_of(uint64_t a, uint64_t b) { return a > b ? a : b; }
__device__ __forceinline__ uint64_t sum_of(uint64_t a, uint64_t b) { return a + b; }

// A row is searched in parts, one block each, so that few rows still use much of the card.
constexpr int64_t kPart = 4 * kThreads;

__global__ void __launch_bounds__(kThreads)
    best_kernel(const float* logits, int64_t stride, int64_t n_vocab, uint64_t* best) {
  __shared__ uint64_t work[kWarps];
  start_in_turn();
  const int64_t first = int64_t{blockIdx.x} * kPart, end = min(first + kPart, n_vocab);
  const float* const row = logits + int64_t{blockIdx.y} * stride;
  uint64_t key = 0;
#pragma unroll 4
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    key = larger_of(key, key_of(row[i], i));
  }
  key = block_reduce(key, work, larger_of);
  if (threadIdx.x == 0) best[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = key;
}

// The same value in every lane of the calling warp.
__device__ uint64_t best_of(const uint64_t* best, int64_t row, int n_parts) {
  uint64_t key = 0;
  for (int p = static_cast<int>(threadIdx.x % 32); p < n_parts; p += 32) {
    key = larger_of(key, best[row * n_parts + p]);
  }
  return warp_reduce(key, larger_of);
}
__device__ SampleStatus status_of(uint64_t best) {
  if (best == kBadKey) return SampleStatus::kNan;
  return best >> 32 <= kNoneKey ? SampleStatus::kEmpty : SampleStatus::kOk;
}
__device__ void give(int32_t* tokens, SampleStatus* status, int64_t row, SampleStatus s,
                     int32_t token) {
  tokens[row] = s == SampleStatus::kOk ? token : -1;
  if (status != nullptr) status[row] = s;
}

// One warp per row.
__global__ void argmax_kernel(const uint64_t* best, int n_parts, int64_t n_rows, int32_t* tokens,
                              SampleStatus* status) {
  start_in_turn();
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (row >= n_rows) return;
  const uint64_t key = best_of(best, row, n_parts);
  if (threadIdx.x % 32 != 0) return;
  give(tokens, status, row, status_of(key), index_of(key));
}

// One row of logits, and the tokens that top-k and top-p keep of it: those whose key is above cut_,
// and the first ties_ tokens at cut_ in index order. One block per row; all methods are called by
// all threads.
//
// The cut is found in bins of equal steps of the logit, then among the keys of one bin: in a list
// if there are at most kListed, otherwise by digits of 11, 11 and 10 bits.
constexpr int kBins = 2048;
constexpr float kBinsPerE = 64.0f;  // a factor of e in weight
constexpr uint32_t kListed = 2048;

struct SampleShared {
  uint64_t work[kWarps];   // of block_reduce()
  uint64_t mass[kBins];    // histogram(): mass per bin
  uint32_t count[kBins];   // histogram(): tokens per bin; count_ties(): ties per warp
  uint32_t list[kListed];  // collect(): keys of one bin
  uint32_t n_listed;
  // Result of find_bin() and find_listed(), written by one thread and published by the barrier at
  // their end: the bin or key, and the mass and count before it.
  uint32_t digit;
  uint64_t before_mass;
  uint32_t before_count;
};

class LogitsRow {
 public:
  __device__ LogitsRow(SampleShared& shared, const float* logits, int64_t n, float most,
                       float temperature)
      : shared_(shared), logits_(logits), n_(n), most_(most) {
    per_temperature_ = __frcp_rn(temperature);
  }

  __device__ float weight_of(float logit) const { return expf((logit - most_) * per_temperature_); }
  __device__ float weight(int64_t i) const { return weight_of(logits_[i]); }
  __device__ static uint64_t mass_of(float weight) {
    return static_cast<uint64_t>(__float2ull_rn(weight * kUnits));
  }

  __device__ uint64_t total() {
    uint64_t sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n_; i += kThreads) sum += mass_of(weight(i));
    return block_reduce(sum, shared_.work, sum_of);
  }

  // In falling order, keeps a token if fewer than most_count tokens and less than most_mass come
  // before it; the first is always kept. Returns the kept mass.
  __device__ uint64_t cut_at(uint64_t most_count, uint64_t most_mass) {
    histogram(kBins, [&](float x) { return kBins - 1 - bin_of(x); });
    find_bin(kBins, most_count, most_mass);
    const int bin = kBins - 1 - static_cast<int>(shared_.digit);
    uint64_t before_count = shared_.before_count, before_mass = shared_.before_mass;
    const uint32_t n_there = shared_.count[shared_.digit];
    __syncthreads();
    const auto narrow = [&] {
      before_count += shared_.before_count;
      before_mass += shared_.before_mass;
      __syncthreads();
    };
    if (n_there <= kListed) {
      collect(bin);
      find_listed(most_count - before_count, most_mass - before_mass);
      cut_ = shared_.digit;
      narrow();
    } else {
      uint32_t prefix = 0;
      int shift = 32;
      for (const int bits : {11, 11, 10}) {
        histogram(1 << bits, [&](float x) {
          const uint32_t key = ordered(x);
          const bool inside = bin_of(x) == bin && (shift == 32 || (key ^ prefix) >> shift == 0);
          return inside ? static_cast<int>(key >> (shift - bits) & ((1u << bits) - 1)) : -1;
        });
        shift -= bits;
        find_bin(1 << bits, most_count - before_count, most_mass - before_mass);
        prefix |= shared_.digit << shift;
        narrow();
      }
      cut_ = prefix;
    }
    // All tokens at the cut have the same mass.
    const uint64_t each = mass_of(weight_of(value_of(cut_)));
    ties_ = most_count - before_count;
    if (each > 0) {
      const uint64_t left = most_mass - before_mass;
      ties_ = min(ties_, left / each + (left % each != 0));
    }
    const uint64_t there = count_cut();
    ties_ = min(max(ties_, uint64_t{1}), there);
    split_ties_ = ties_ < there;
    return before_mass + ties_ * each;
  }

  // Of the kept tokens with a weight of at least min_p, the one of the largest score
  // (ops/gumbel.h), the lower index on a tie.
  __device__ int32_t draw(uint64_t seed, int64_t position, float temperature, float min_p) {
    BestScore best;
    float limit = limit_of(kLeastGumbel);
    uint64_t ties = 0;
    for (int64_t first = 0; first < n_; first += kThreads * kEach) {
      const int64_t own = first + threadIdx.x * kEach;
      if (split_ties_) ties = count_ties(own, ties);
      uint64_t ties_before = ties_before_;
      for (int j = 0; j < kEach && own + j < n_; j += 4) {
        const NoiseBlock noise = noise_block(seed, position, static_cast<uint32_t>((own + j) / 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t token = own + j + i;
          if (token >= n_) break;
          const bool kept = is_kept(token, ties_before);
          if (split_ties_) ties_before += ordered(logits_[token]) == cut_ ? 1 : 0;
          const float w = weight(token);
          if (!kept || w < min_p || !may_win(noise.word[i], w, limit)) continue;
          const double score = gumbel_score(logits_[token], most_, temperature, noise.word[i]);
          if (best.take(score, static_cast<int32_t>(token))) limit = limit_of(score);
        }
      }
    }
    const uint64_t key = best.token < 0 ? 0 : score_key(best.score);
    const uint64_t top = block_reduce(key, shared_.work, larger_of);
    const uint64_t mine = key == top && best.token >= 0 ? ~static_cast<uint64_t>(best.token) : 0;
    return static_cast<int32_t>(~block_reduce(mine, shared_.work, larger_of));
  }

 private:
  __device__ static float value_of(uint32_t key) {
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
  }

  // Never smaller for a smaller logit.
  __device__ int bin_of(float x) const {
    return static_cast<int>(
        fminf((most_ - x) * per_temperature_ * kBinsPerE, static_cast<float>(kBins - 1)));
  }

  // count[] and mass[] by bin_at(logit); a negative bin is skipped.
  template <typename Bin>
  __device__ void histogram(int n_bins, const Bin& bin_at) {
    for (int i = threadIdx.x; i < n_bins; i += kThreads) {
      shared_.count[i] = 0;
      shared_.mass[i] = 0;
    }
    __syncthreads();
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n_; i += kThreads) {
      const float x = logits_[i];
      const int bin = bin_at(x);
      if (bin < 0) continue;
      atomicAdd(&shared_.count[bin], 1u);
      atomicAdd(reinterpret_cast<unsigned long long*>(&shared_.mass[bin]),
                static_cast<unsigned long long>(mass_of(weight_of(x))));
    }
    __syncthreads();
  }

  // The keys of a bin's tokens, in any order.
  __device__ void collect(int bin) {
    if (threadIdx.x == 0) shared_.n_listed = 0;
    __syncthreads();
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n_; i += kThreads) {
      const float x = logits_[i];
      if (bin_of(x) == bin) shared_.list[atomicAdd(&shared_.n_listed, 1u)] = ordered(x);
    }
    __syncthreads();
  }

  // The lowest listed key with less than both limits before it, or the highest listed key.
  __device__ void find_listed(uint64_t most_count, uint64_t most_mass) {
    const uint32_t n = shared_.n_listed;
    uint32_t cut = 0xffffffffu;
    uint64_t cut_mass = 0;
    uint32_t cut_count = 0;
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const uint32_t key = shared_.list[i];
      uint32_t count = 0;
      uint64_t mass = 0;
      for (uint32_t j = 0; j < n; ++j) {
        const uint32_t other = shared_.list[j];
        if (other <= key) continue;
        ++count;
        mass += mass_of(weight_of(value_of(other)));
      }
      if ((count == 0 || (count < most_count && mass < most_mass)) && key < cut) {
        cut = key;
        cut_count = count;
        cut_mass = mass;
      }
    }
    const auto lower = [](uint64_t a, uint64_t b) { return a < b ? a : b; };
    const uint64_t lowest = block_reduce(uint64_t{cut}, shared_.work, lower);
    if (cut == lowest) {  // threads with the same key agree on the rest
      shared_.digit = cut;
      shared_.before_count = cut_count;
      shared_.before_mass = cut_mass;
    }
    __syncthreads();
  }

  // Tokens at the cut.
  __device__ uint64_t count_cut() {
    uint64_t n = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n_; i += kThreads) n += ordered(logits_[i]) == cut_ ? 1 : 0;
    return block_reduce(n, shared_.work, sum_of);
  }

  // From the top, the bin in which the count or the mass reaches its limit; the lowest bin that is
  // not empty if none does. By warp 0, one run of bins per lane.
  __device__ void find_bin(int n_bins, uint64_t most_count, uint64_t most_mass) {
    if (threadIdx.x < 32) {
      const int lane = static_cast<int>(threadIdx.x), each = n_bins / 32;
      const int top = n_bins - 1 - lane * each;
      uint64_t count = 0, mass = 0;
      for (int i = 0; i < each; ++i) {
        count += shared_.count[top - i];
        mass += shared_.mass[top - i];
      }
      count = scan(count) - count;
      mass = scan(mass) - mass;
      bool reached = false, any = false;
      int bin = 0;
      uint64_t before_count = 0, before_mass = 0;
      for (int i = 0; i < each && !reached; ++i) {
        const uint32_t here = shared_.count[top - i];
        if (here == 0) continue;
        any = true;
        bin = top - i;
        before_count = count;
        before_mass = mass;
        count += here;
        mass += shared_.mass[bin];
        reached = count >= most_count || mass >= most_mass;
      }
      const uint32_t who = __ballot_sync(~0u, reached), some = __ballot_sync(~0u, any);
      const int chosen =
          who != 0 ? __ffs(static_cast<int>(who)) - 1 : 31 - __clz(static_cast<int>(some));
      if (lane == chosen) {
        shared_.digit = static_cast<uint32_t>(bin);
        shared_.before_count = static_cast<uint32_t>(before_count);
        shared_.before_mass = before_mass;
      }
    }
    __syncthreads();
  }

  // Sums over the lanes up to this one.
  __device__ static uint64_t scan(uint64_t x) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, x, offset);
      if (static_cast<int>(threadIdx.x) % 32 >= offset) x += other;
    }
    return x;
  }

  // ties_before: tokens at the cut before i.
  __device__ bool is_kept(int64_t i, uint64_t ties_before) const {
    const uint32_t key = ordered(logits_[i]);
    return key > cut_ || (key == cut_ && !(split_ties_ && ties_before >= ties_));
  }

  // Larger for a larger score; never 0.
  __device__ static uint64_t score_key(double score) {
    const auto bits = static_cast<uint64_t>(__double_as_longlong(score + 0.0));
    return (bits >> 63) != 0 ? ~bits : bits | uint64_t{1} << 63;
  }

  // Sets ties_before_, given the ties before this step of draw(); returns the ties up to its end.
  __device__ uint64_t count_ties(int64_t own, uint64_t before) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t own_ties = 0;
    for (int j = 0; j < kEach; ++j) {
      own_ties += own + j < n_ && ordered(logits_[own + j]) == cut_ ? 1 : 0;
    }
    const uint64_t up_to = scan(own_ties);
    if (lane == 31) shared_.count[warp] = static_cast<uint32_t>(up_to);
    __syncthreads();
    ties_before_ = before + up_to - own_ties;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) ties_before_ += shared_.count[w];
      before += shared_.count[w];
    }
    return before;
  }

  static constexpr int kEach = 8;

  SampleShared& shared_;
  const float* logits_;
  int64_t n_;
  float most_, per_temperature_;
  uint32_t cut_ = 0;
  uint64_t ties_ = 0;
  bool split_ties_ = false;
  uint64_t ties_before_ = 0;
};

struct SampleArgs {
  const float* logits;
  int64_t stride, n_vocab;
  const uint64_t* best;
  int n_parts;
  SampleRowsCuda rows;
  int32_t* tokens;
  SampleStatus* status;
};

__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ SampleShared shared;
  start_in_turn();
  const int64_t r = blockIdx.x;
  const uint64_t best = best_of(args.best, r, args.n_parts);
  const SamplerParams params =
      args.rows.params[args.rows.sequence == nullptr ? r : args.rows.sequence[r]];
  const SampleStatus status = status_of(best);
  int32_t token = index_of(best);
  if (status == SampleStatus::kOk && params.temperature > 0.0f && params.top_k != 1) {
    const float* const logits = args.logits + r * args.stride;
    LogitsRow row(shared, logits, args.n_vocab, logits[token], params.temperature);
    const bool few = params.top_k > 0 && params.top_k < args.n_vocab;
    constexpr uint64_t kAll = uint64_t{1} << 62;
    uint64_t mass = 0;
    if (few) mass = row.cut_at(static_cast<uint64_t>(params.top_k), kAll);
    if (params.top_p < 1.0f) {
      if (!few) mass = row.total();
      const double most = static_cast<double>(params.top_p) * static_cast<double>(mass);
      row.cut_at(few ? static_cast<uint64_t>(params.top_k) : kAll,
                 static_cast<uint64_t>(ceil(most)));
    }
    token = row.draw(params.seed, args.rows.positions[r], params.temperature, params.min_p);
  }
  if (threadIdx.x == 0) give(args.tokens, args.status, r, status, token);
}

__global__ void __launch_bounds__(kThreads)
    log_prob_kernel(const float* logits, int64_t stride, int64_t n_vocab, const uint64_t* best,
                    int n_parts, const int32_t* tokens, double* out) {
  __shared__ SampleShared shared;
  start_in_turn();
  const int64_t r = blockIdx.x;
  const uint64_t key = best_of(best, r, n_parts);
  const float* const row = logits + r * stride;
  double result = __longlong_as_double(0x7ff8000000000000ll);
  if (status_of(key) == SampleStatus::kOk) {
    const float most = row[index_of(key)];
    const uint64_t total = LogitsRow(shared, row, n_vocab, most, 1.0f).total();
    result = static_cast<double>(row[tokens[r]]) - static_cast<double>(most) -
             log(static_cast<double>(total) / static_cast<double>(kUnits));
  }
  if (threadIdx.x == 0) out[r] = result;
}

// Acceptance of drafts, one thread per batch row. Row r has a row of logits first[r] + i for each
// of its window's tokens i in [0, n_tokens[r]): token 0 is committed already, tokens 1 and up are
// drafts. The token of a row of logits is tokens[token_of[row]] (tokens[row] if token_of is null).
// drawn[first[r] + i] is the target's own token after window token i, drawn with the generator for
// its (seed, position).
//
// Draft i + 1 is accepted if all drafts before it are and it equals drawn[i]. So the output is what
// the target would have drawn alone: the same text with and without drafts, for any drafter and any
// temperature, and no correction of the distribution is needed.
//
//   n_accepted  drafts accepted, in [0, n_tokens - 1]; the step commits n_accepted + 1 positions
//   next        drawn[n_accepted]: the first token after the accepted ones, fed to the next step
__global__ void verify_kernel(const __grid_constant__ VerifyRowsCuda rows, const int32_t* tokens,
                              const int32_t* drawn, int32_t* n_accepted, int32_t* next) {
  start_in_turn();
  const int32_t r = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= rows.n_rows) return;
  const int32_t n = rows.n_tokens[r];
  const int64_t first = rows.first[r];
  const auto token_at = [&](int64_t i) {
    return tokens[rows.token_of == nullptr ? i : rows.token_of[i]];
  };
  int32_t accepted = 0;
  while (accepted + 1 < n && token_at(first + accepted + 1) == drawn[first + accepted]) ++accepted;
  n_accepted[r] = accepted;
  next[r] = n > 0 ? drawn[first + accepted] : -1;
}

struct Best {
  const uint64_t* keys;
  int n_parts;
};

Best find_best(const CudaContext& context, ConstMatrix logits) {
  REPLAYSSM_CHECK(logits.dtype == DType::kF32 && logits.cols > 0 && logits.cols < int64_t{1} << 31,
                  logits.cols, " ", dtype_name(logits.dtype));
  const int64_t n_parts = (logits.cols + kPart - 1) / kPart;
  REPLAYSSM_CHECK(logits.rows <= 65535 && logits.rows * n_parts * int64_t{sizeof(uint64_t)} <=
                                              CudaContext::kWorkspaceBytes,
                  logits.rows, " rows of ", logits.cols);
  auto* const keys = static_cast<uint64_t*>(context.workspace());
  const dim3 grid(static_cast<unsigned>(n_parts), static_cast<unsigned>(logits.rows));
  launch_in_turn(context, "sample", best_kernel, grid, kThreads, 0,
                 static_cast<const float*>(logits.data), logits.stride, logits.cols, keys);
  return {keys, static_cast<int>(n_parts)};
}

constexpr int kSmall = 128;  // threads per block of kernels with one thread per row

}  // namespace

void argmax(const CudaContext& context, ConstMatrix logits, int32_t* tokens, SampleStatus* status) {
  if (logits.rows == 0) return;
  const Best best = find_best(context, logits);
  launch_in_turn(context, "argmax", argmax_kernel, blocks_for(logits.rows, kSmall / 32), kSmall, 0,
                 best.keys, best.n_parts, logits.rows, tokens, status);
}

void sample(const CudaContext& context, ConstMatrix logits, const SampleRowsCuda& rows,
            int32_t* tokens, SampleStatus* status) {
  if (logits.rows == 0) return;
  const Best best = find_best(context, logits);
  launch_in_turn(context, "sample", sample_kernel, static_cast<unsigned>(logits.rows), kThreads, 0,
                 SampleArgs{static_cast<const float*>(logits.data), logits.stride, logits.cols,
                            best.keys, best.n_parts, rows, tokens, status});
}

void log_prob(const CudaContext& context, ConstMatrix logits, const int32_t* tokens, double* out) {
  if (logits.rows == 0) return;
  const Best best = find_best(context, logits);
  launch_in_turn(context, "log_prob", log_prob_kernel, static_cast<unsigned>(logits.rows), kThreads,
                 0, static_cast<const float*>(logits.data), logits.stride, logits.cols, best.keys,
                 best.n_parts, tokens, out);
}

void verify(const CudaContext& context, const VerifyRowsCuda& rows, const int32_t* tokens,
            const int32_t* drawn, int32_t* n_accepted, int32_t* next) {
  if (rows.n_rows == 0) return;
  launch_in_turn(context, "verify", verify_kernel, blocks_for(rows.n_rows, kSmall), kSmall, 0, rows,
                 tokens, drawn, n_accepted, next);
}

}  // namespace replayssm::ops::cuda
