// The kernel of fp32 activations: any shape, ring dtype and interval, fp32 checkpoints. It is there
// for exactness, not for speed: sums and gates are in double, and a value is rounded only where the
// ring or the checkpoint rounds it. A block computes the heads of one key head one after another,
// so that no block reads ring keys that another has overwritten. It computes one token at a time,
// so that a token's bits cannot depend on its window.
#include "replay/cuda/general_cuda.h"
#include "replay/cuda/ptx.cuh"
#include "replay/cuda/tile.h"

namespace replayssm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxSharedBytes = 227 * 1024;

// A block's shared memory for one head, in this order.
struct Sizes {
  int gates, key_stride;  // log decays of a row; elements between rows of the state
  size_t decay_bytes, operand_bytes, weight_bytes, state_bytes, key_bytes, value_bytes;

  __host__ __device__ explicit Sizes(const Problem& p)
      : gates(p.family == Family::kKda ? p.key_dim : 1),
        key_stride(p.key_dim + 1),
        decay_bytes(sizeof(double) * p.grid.interval * gates),
        operand_bytes(sizeof(double) * 3 * p.key_dim),
        weight_bytes(sizeof(double) * 3 * p.grid.interval),
        state_bytes(sizeof(float) * p.value_dim * key_stride),
        key_bytes(sizeof(float) * p.grid.interval * p.key_dim),
        value_bytes(sizeof(float) * p.grid.interval * p.value_dim) {}
  __host__ __device__ size_t total() const {
    return decay_bytes + operand_bytes + weight_bytes + state_bytes + key_bytes + value_bytes;
  }
};

// Not inlined: a dozen copies would take a quarter of a minute to compile.
__device__ __noinline__ double exponential(double x) { return exp(x); }
__device__ double softplus(double x) { return x > 20.0 ? x : log1p(exponential(x)); }
__device__ double sigmoid(double x) { return 1.0 / (1.0 + exponential(-x)); }

__device__ double warp_sum(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

class GeneralBlock {
 public:
  __device__ GeneralBlock(const Problem& p, const StepArgs& a, bool sweep, uint8_t* memory)
      : p_(p), a_(a), sizes_(p), row_(a.rows[blockIdx.z]), sweep_(sweep) {
    const auto take = [&](auto*& to, size_t bytes) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(memory);
      memory += bytes;
    };
    take(decay_, sizes_.decay_bytes);
    take(query_, sizes_.operand_bytes);
    decayed_key_ = query_ + p.key_dim;
    decayed_query_ = decayed_key_ + p.key_dim;
    take(key_weight_, sizes_.weight_bytes);
    query_weight_ = key_weight_ + p.grid.interval;
    dt_ = query_weight_ + p.grid.interval;
    take(state_, sizes_.state_bytes);
    take(keys_, sizes_.key_bytes);
    take(values_, sizes_.value_bytes);
  }

  __device__ void run() {
    end_ = row_.start + row_.n_tokens;
    const bool pending = p_.grid.fold_pending(row_.n, row_.c);
    if (row_.read_slot < 0 || (row_.n_tokens == 0 && !pending)) return;
    const int per_key = p_.n_heads / p_.n_key_heads;
    for (int i = 0; i < per_key; ++i) {
      head_ = static_cast<int>(blockIdx.y) * per_key + i;
      last_head_ = i == per_key - 1;
      run_head(pending);
      __syncthreads();
    }
  }

 private:
  __device__ bool mamba() const { return p_.family == Family::kMamba2; }
  __device__ bool kda() const { return p_.family == Family::kKda; }
  __device__ int64_t interval() const { return p_.grid.interval; }

  __device__ void run_head(bool pending) {
    load_state();
    base_ = row_.c;
    if (pending) {
      load_rows(base_, base_ + interval());
      fold(true);
      base_ += interval();
    }
    const int64_t last = p_.grid.checkpoint_of(end_);
    load_rows(base_, min(row_.start, base_ + interval()));
    for (int64_t position = row_.start;; ++position) {
      if (position >= base_ + interval() && (position < end_ || sweep_)) {
        fold(sweep_ && base_ + interval() == last);
        base_ += interval();
        load_rows(base_, row_.start);
      }
      if (position >= end_) break;
      token(position);
    }
  }

  // ---- the checkpoint

  __device__ float* element(int slot, int value, int key) const {
    return static_cast<float*>(a_.checkpoint) + slot * a_.checkpoint_slot_stride +
           stored_index(DType::kF32, p_.value_dim, p_.key_dim,
                        int64_t{head_} * p_.value_dim + value, key);
  }
  __device__ void load_state() {
    for (int i = threadIdx.x; i < p_.value_dim * p_.key_dim; i += kThreads) {
      const int value = i / p_.key_dim, key = i % p_.key_dim;
      state_[value * sizes_.key_stride + key] =
          row_.c == 0 ? 0.0f : *element(row_.read_slot, value, key);
    }
    __syncthreads();
  }
  // S <- e^{G_end} S + sum_j w_j u_j k_j^T, rounded.
  __device__ void fold(bool to_slot) {
    const int b = p_.grid.interval;
    for (int i = threadIdx.x; i < p_.value_dim * p_.key_dim; i += kThreads) {
      const int value = i / p_.key_dim, key = i % p_.key_dim, channel = kda() ? key : 0;
      const double end = decay_[(b - 1) * sizes_.gates + channel];
      float& s = state_[value * sizes_.key_stride + key];
      double sum = exponential(end) * s;
      for (int j = 0; j < b; ++j) {
        const double weight =
            exponential(end - decay_[j * sizes_.gates + channel]) * (mamba() ? dt_[j] : 1.0);
        sum += weight * values_[j * p_.value_dim + value] * keys_[j * p_.key_dim + key];
      }
      s = static_cast<float>(sum);
      if (to_slot) *element(row_.write_slot, value, key) = s;
    }
    __syncthreads();
  }

  // ---- ring rows

  __device__ int64_t ring_at(const Ring& ring, int64_t position) const {
    return row_.ring_slot * ring.slot_stride + p_.grid.row_of(position) * ring.row_stride;
  }
  __device__ float ring_value(const Ring& ring, int64_t at) const {
    if (p_.ring == DType::kF32) return static_cast<const float*>(ring.data)[at];
    const uint16_t bits = static_cast<const uint16_t*>(ring.data)[at];
    return p_.ring == DType::kF16 ? unpack_half(bits).x : unpack_bf16(bits).x;
  }
  // As the ring holds it; counts what fp16 does not.
  __device__ float rounded(double x, bool count) const {
    if (p_.ring == DType::kF32) return static_cast<float>(x);
    if (p_.ring == DType::kBF16) return unpack_bf16(pack_bf16(static_cast<float>(x), 0)).x;
    const uint32_t bits = pack_half_finite(static_cast<float>(x), 0);
    if (count && n_largest(bits) != 0 && a_.n_saturated != nullptr) {
      atomicAdd(reinterpret_cast<unsigned long long*>(a_.n_saturated), 1ull);
    }
    return unpack_half(bits).x;
  }
  __device__ void put(const Ring& ring, int64_t at, float x) const {
    if (p_.ring == DType::kF32) {
      static_cast<float*>(ring.data)[at] = x;
    } else {
      static_cast<uint16_t*>(ring.data)[at] =
          static_cast<uint16_t>(p_.ring == DType::kF16 ? pack_half(x, 0) : pack_bf16(x, 0));
    }
  }

  // Rows [from, to) of the interval at base_.
  __device__ void load_rows(int64_t from, int64_t to) {
    for (int64_t position = from; position < to; ++position) {
      const int slot = static_cast<int>(position - base_);
      for (int k = threadIdx.x; k < p_.key_dim; k += kThreads) {
        keys_[slot * p_.key_dim + k] =
            ring_value(a_.ring_key, ring_at(a_.ring_key, position) + blockIdx.y * p_.key_dim + k);
      }
      for (int v = threadIdx.x; v < p_.value_dim; v += kThreads) {
        values_[slot * p_.value_dim + v] = ring_value(
            a_.ring_value, ring_at(a_.ring_value, position) + int64_t{head_} * p_.value_dim + v);
      }
      for (int i = threadIdx.x; i < sizes_.gates; i += kThreads) {
        append_gate(
            slot, i,
            static_cast<const float*>(a_.ring_gate.data)[ring_at(a_.ring_gate, position) +
                                                         int64_t{head_} * sizes_.gates + i]);
      }
    }
    __syncthreads();
  }

  // The prefix sum of a log decay; Mamba-2's gate is dt.
  __device__ void append_gate(int slot, int channel, float gate) {
    double decay = gate;
    if (mamba()) {
      dt_[slot] = gate;
      decay = -exponential(static_cast<double>(a_.a_log[head_])) * gate;
    }
    const int at = slot * sizes_.gates + channel;
    decay_[at] = slot == 0 ? decay : decay_[at - sizes_.gates] + decay;
  }

  // ---- a token

  __device__ const float* input(const Tokens& tokens, int64_t position, int64_t at) const {
    return static_cast<const float*>(tokens.data) +
           (row_.token + (position - row_.start)) * tokens.token_stride + at;
  }

  __device__ void token(int64_t position) {
    const int slot = static_cast<int>(position - base_);
    const bool to_ring = !sweep_ || position >= p_.grid.checkpoint_of(end_);
    operands(position, slot, to_ring);
    gates(position, slot, to_ring);
    __syncthreads();
    const double* own = decay_ + slot * sizes_.gates;
    const float* key = keys_ + slot * p_.key_dim;
    for (int k = threadIdx.x; k < p_.key_dim; k += kThreads) {
      const double decay = exponential(own[kda() ? k : 0]);
      decayed_key_[k] = decay * key[k];
      decayed_query_[k] = decay * query_[k];
    }
    // The weights of the ring rows, one warp per row.
    const int lane = threadIdx.x % 32;
    for (int j = threadIdx.x / 32; j <= slot; j += kThreads / 32) {
      double sums[2] = {};
      for (int k = lane; k < p_.key_dim; k += 32) {
        const int channel = kda() ? k : 0;
        const double decay =
            j == slot ? 1.0 : exponential(own[channel] - decay_[j * sizes_.gates + channel]);
        const double x = decay * keys_[j * p_.key_dim + k];
        sums[0] += x * key[k];
        sums[1] += x * query_[k];
      }
      const double dt = mamba() ? dt_[j] : 1.0;
      key_weight_[j] = warp_sum(sums[0]) * dt;
      query_weight_[j] = warp_sum(sums[1]) * dt;
    }
    __syncthreads();
    double beta = 0;
    if (!mamba()) beta = p_.beta_scale * sigmoid(*input(a_.beta, position, head_));
    for (int v = threadIdx.x; v < p_.value_dim; v += kThreads) {
      const int64_t at = int64_t{head_} * p_.value_dim + v;
      const float* s = state_ + v * sizes_.key_stride;
      double read = 0, y = 0;
      for (int k = 0; k < p_.key_dim; ++k) {
        read += s[k] * decayed_key_[k];
        y += s[k] * decayed_query_[k];
      }
      for (int j = 0; j < slot; ++j) {
        read += key_weight_[j] * values_[j * p_.value_dim + v];
        y += query_weight_[j] * values_[j * p_.value_dim + v];
      }
      const double value = *input(a_.value, position, at);
      const float u = rounded(mamba() ? value : beta * (value - read), true);
      values_[slot * p_.value_dim + v] = u;
      y += query_weight_[slot] * u;
      if (mamba()) y += a_.skip[head_] * value;
      static_cast<float*>(
          a_.out.data)[(row_.token + (position - row_.start)) * a_.out.token_stride + at] =
          static_cast<float>(y);
      if (to_ring) put(a_.ring_value, ring_at(a_.ring_value, position) + at, u);
    }
    __syncthreads();
  }

  // The token's key and query. GDN's and KDA's are normalised.
  __device__ void operands(int64_t position, int slot, bool to_ring) {
    const int64_t at = int64_t{blockIdx.y} * p_.key_dim;
    const float* key = input(a_.key, position, at);
    const float* query = input(a_.query, position, at);
    double factors[2] = {1.0, 1.0};
    if (!mamba()) {
      // Every warp computes it.
      double squares[2] = {};
      for (int k = threadIdx.x % 32; k < p_.key_dim; k += 32) {
        squares[0] += static_cast<double>(key[k]) * key[k];
        squares[1] += static_cast<double>(query[k]) * query[k];
      }
      factors[0] = 1.0 / sqrt(warp_sum(squares[0]) + 1e-6);
      factors[1] = 1.0 / sqrt((warp_sum(squares[1]) + 1e-6) * p_.key_dim);
    }
    for (int k = threadIdx.x; k < p_.key_dim; k += kThreads) {
      query_[k] = query[k] * factors[1];
      const float x = rounded(key[k] * factors[0], last_head_);
      keys_[slot * p_.key_dim + k] = x;
      if (to_ring && last_head_) put(a_.ring_key, ring_at(a_.ring_key, position) + at + k, x);
    }
  }

  __device__ void gates(int64_t position, int slot, bool to_ring) {
    for (int i = threadIdx.x; i < sizes_.gates; i += kThreads) {
      const int64_t at = int64_t{head_} * sizes_.gates + i;
      const double raw = static_cast<double>(*input(a_.gate, position, at)) + a_.dt_bias[at];
      const double rate = exponential(static_cast<double>(a_.a_log[head_]));
      double gate = softplus(raw);
      if (!mamba()) gate *= -rate;
      if (kda() && p_.decay_gate == DecayGate::kBounded) {
        gate = p_.decay_lower_bound * sigmoid(rate * raw);
      }
      append_gate(slot, i, static_cast<float>(gate));
      if (to_ring) {
        static_cast<float*>(a_.ring_gate.data)[ring_at(a_.ring_gate, position) + at] =
            static_cast<float>(gate);
      }
    }
  }

  const Problem& p_;
  const StepArgs& a_;
  const Sizes sizes_;
  const Row row_;
  const bool sweep_;
  int64_t end_, base_;
  int head_;
  bool last_head_;
  double *decay_, *query_, *decayed_key_, *decayed_query_;
  double *key_weight_, *query_weight_, *dt_;
  float *state_, *keys_, *values_;
};

__global__ void __launch_bounds__(kThreads)
    general_kernel(const __grid_constant__ Problem problem, const __grid_constant__ StepArgs args,
                   bool sweep) {
  extern __shared__ __align__(16) uint8_t general_memory[];
  GeneralBlock(problem, args, sweep, general_memory).run();
}

}  // namespace

std::string general_reason(const Problem& p) {
  if (p.checkpoint != DType::kF32) return "with fp32 activations the CUDA checkpoint is fp32";
  if (p.value_dim % kProductRows != 0 || p.key_dim % kStepKeys != 0) {
    return "with fp32 activations the CUDA kernel needs value_dim and key_dim to be multiples of "
           "16";
  }
  if (Sizes(p).total() > kMaxSharedBytes) {
    return "a head's state and rows do not fit the shared memory of an SM";
  }
  return "";
}

void launch_general(const StepArgs& args, const Problem& problem, bool sweep, cudaStream_t stream) {
  const int bytes = static_cast<int>(Sizes(problem).total());
  cudaFuncSetAttribute(general_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  constexpr int kMaxRows = 65535;  // limit of a grid's third dimension
  StepArgs part = args;
  for (int32_t first = 0; first < args.n_rows; first += kMaxRows) {
    part.rows = args.rows + first;
    part.n_rows = min(args.n_rows - first, kMaxRows);
    const dim3 grid(1, static_cast<unsigned>(problem.n_key_heads),
                    static_cast<unsigned>(part.n_rows));
    general_kernel<<<grid, kThreads, static_cast<size_t>(bytes), stream>>>(problem, part, sweep);
  }
}

}  // namespace replayssm::cuda
