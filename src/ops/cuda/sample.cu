#include "ops/cuda/device.cuh"
#include "ops/cuda/sample_cuda.h"

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

// Philox4x32-10 with key `seed` and counter `position`: 53 random bits at the top of the result.
// The draw at a position depends on nothing else.
__device__ uint64_t uniform_bits(uint64_t seed, int64_t position) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(position);
  uint32_t c1 = static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32), c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint64_t bits = uint64_t{c1} << 32 | c0;
  return bits >> 11 << 11;
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
  uint64_t mass[kBins];    // histogram(): mass per bin; find(): mass per thread
  uint32_t count[kBins];   // histogram(): tokens per bin; count_ties(): ties per warp
  uint32_t list[kListed];  // collect(): keys of one bin
  uint32_t n_listed;
  // Result of find_bin(), find_listed() and find(), written by one thread and published by the
  // barrier at their end: the bin, key or token, and the mass and count before it.
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

  // Draws among the kept tokens with a weight of at least min_p: the token, in index order, whose
  // interval of the cumulative mass holds bits / 2^64. total: the kept mass (used if min_p is 0).
  __device__ int32_t draw(uint64_t bits, float min_p, uint64_t total) {
    if (min_p > 0.0f) {
      total = 0;
      walk(min_p, [&](uint64_t mass, int64_t) {
        total += mass;
        return false;
      });
    }
    const uint64_t target = __umul64hi(bits, total);
    uint64_t before = 0;
    int32_t token = -1;
    walk(min_p, [&](uint64_t mass, int64_t first) {
      if (before + mass <= target) {
        before += mass;
        return false;
      }
      token = find(first, min_p, target - before);
      return true;
    });
    return token;
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

  // Mass of token i; 0 if it is not kept. ties_before: tokens at the cut before i.
  __device__ uint64_t kept_mass(int64_t i, float min_p, uint64_t ties_before) const {
    const uint32_t key = ordered(logits_[i]);
    if (key < cut_ || (split_ties_ && key == cut_ && ties_before >= ties_)) return 0;
    const float w = weight(i);
    return w < min_p ? 0 : mass_of(w);
  }

  // Calls body(kept mass of tokens [first, first + kThreads * kEach), first), in order, until it
  // returns true. Each thread has kEach consecutive tokens; their mass stays in mine_.
  template <typename Body>
  __device__ void walk(float min_p, const Body& body) {
    uint64_t ties = 0;
    for (int64_t first = 0; first < n_; first += kThreads * kEach) {
      const int64_t own = first + threadIdx.x * kEach;
      if (split_ties_) ties = count_ties(own, ties);
      mine_ = 0;
      each_kept(own, min_p, [&](uint64_t mass, int) {
        mine_ += mass;
        return false;
      });
      if (body(block_reduce(mine_, shared_.work, sum_of), first)) return;
    }
  }

  // Sets ties_before_, given the ties before this step of walk(); returns the ties up to its end.
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

  template <typename Body>
  __device__ void each_kept(int64_t own, float min_p, const Body& body) const {
    uint64_t ties = ties_before_;
    for (int j = 0; j < kEach && own + j < n_; ++j) {
      if (body(kept_mass(own + j, min_p, ties), j)) return;
      if (split_ties_) ties += ordered(logits_[own + j]) == cut_ ? 1 : 0;
    }
  }

  // The token, among those of walk()'s last step, at which the cumulative mass passes target.
  __device__ int32_t find(int64_t first, float min_p, uint64_t target) {
    shared_.mass[threadIdx.x] = mine_;
    __syncthreads();
    if (threadIdx.x < 32) {
      constexpr int kRun = kThreads / 32;
      const int lane = static_cast<int>(threadIdx.x);
      uint64_t sum = 0;
      for (int i = 0; i < kRun; ++i) sum += shared_.mass[lane * kRun + i];
      const uint64_t up_to = scan(sum);
      uint64_t before = up_to - sum;
      if (before <= target && target < up_to) {
        int i = lane * kRun;
        while (before + shared_.mass[i] <= target) before += shared_.mass[i++];
        shared_.digit = static_cast<uint32_t>(i);
        shared_.before_mass = before;
      }
    }
    __syncthreads();
    const uint32_t owner = shared_.digit;
    uint64_t before = shared_.before_mass;
    __syncthreads();
    if (threadIdx.x == owner) {
      each_kept(first + owner * kEach, min_p, [&](uint64_t mass, int j) {
        before += mass;
        shared_.digit = owner * kEach + static_cast<uint32_t>(j);
        return before > target;
      });
    }
    __syncthreads();
    return static_cast<int32_t>(first + shared_.digit);
  }

  static constexpr int kEach = 8;

  SampleShared& shared_;
  const float* logits_;
  int64_t n_;
  float most_, per_temperature_;
  uint32_t cut_ = 0;
  uint64_t ties_ = 0;
  bool split_ties_ = false;
  uint64_t mine_ = 0, ties_before_ = 0;
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
    if (!few) mass = row.total();
    if (params.top_p < 1.0f) {
      const double most = static_cast<double>(params.top_p) * static_cast<double>(mass);
      mass = row.cut_at(few ? static_cast<uint64_t>(params.top_k) : kAll,
                        static_cast<uint64_t>(ceil(most)));
    }
    token = row.draw(uniform_bits(params.seed, args.rows.positions[r]), params.min_p, mass);
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
