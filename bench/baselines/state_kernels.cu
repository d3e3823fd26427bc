// A warp owns 16 state rows, eight lanes per row: a lane holds a 16th of four consecutive rows'
// keys in 16-byte chunks, so that every access is whole sectors and nothing is shared between
// warps.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "bench/baselines/state_kernels.h"
#include "replay/cuda/ptx.cuh"

namespace replayssm::cuda {
namespace {

constexpr int kKeyDim = 128;
constexpr int kLanes = 8;                       // per state row
constexpr int kLaneRows = 4;                    // consecutive rows per lane
constexpr int kElements = kKeyDim / kLanes;     // of one row per lane
constexpr int kRows = 32 / kLanes * kLaneRows;  // of a warp
constexpr int kWarps = 2;                       // per block; they never synchronise
// Blocks of baseline_kernel that a GPU of 132 SMs (H100, H200) holds at once.
constexpr int kBlocksAtOnce = 8 * 132;

struct Float {
  static constexpr int kChunk = 4;  // elements of 16 bytes
  using Type = float;
  static __device__ void load(const float* from, float* to) {
    const float4 x = __ldcs(reinterpret_cast<const float4*>(from));
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
  static __device__ void store(const float* from, float* to) {
    __stcs(reinterpret_cast<float4*>(to), make_float4(from[0], from[1], from[2], from[3]));
  }
};

template <typename T, float2 (*kUnpack)(uint32_t), uint32_t (*kPack)(float, float)>
struct Narrow {
  static constexpr int kChunk = 8;
  using Type = T;
  static __device__ void unpack(const uint4& from, float* to) {
    const uint32_t pairs[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = kUnpack(pairs[i]);
      to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
    }
  }
  static __device__ uint4 pack(const float* from) {
    return make_uint4(kPack(from[0], from[1]), kPack(from[2], from[3]), kPack(from[4], from[5]),
                      kPack(from[6], from[7]));
  }
  static __device__ void load(const T* from, float* to) {
    unpack(__ldcs(reinterpret_cast<const uint4*>(from)), to);
  }
  static __device__ void store(const float* from, T* to) {
    __stcs(reinterpret_cast<uint4*>(to), pack(from));
  }
};
using Half = Narrow<__half, unpack_half, pack_half_finite>;  // saturates; NaN stays NaN
using BFloat = Narrow<__nv_bfloat16, unpack_bf16, pack_bf16>;

// The lane's elements of a key vector: chunk c of a row begins at (c * kLanes + lane) * kChunk.
template <int kChunk>
__device__ void load_keys(const Tokens& tokens, int64_t token, int key_head, int lane,
                          float (&to)[kElements]) {
  const __nv_bfloat16* from = static_cast<const __nv_bfloat16*>(tokens.data) +
                              token * tokens.token_stride + key_head * kKeyDim + lane * kChunk;
#pragma unroll
  for (int c = 0; c < kElements / kChunk; ++c) {
    using Bits = std::conditional_t<kChunk == 8, uint4, uint2>;
    const Bits x = __ldg(reinterpret_cast<const Bits*>(from + c * kLanes * kChunk));
    const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&x);
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      const float2 pair = __bfloat1622float2(pairs[i]);
      to[c * kChunk + 2 * i] = pair.x, to[c * kChunk + 2 * i + 1] = pair.y;
    }
  }
}

// The sum over the eight lanes of a row, in all of them.
__device__ float row_sum(float x) {
#pragma unroll
  for (int i = 1; i < kLanes; i *= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}

__device__ float dot(const float (&a)[kElements], const float (&b)[kElements]) {
  float even = 0, odd = 0;
#pragma unroll
  for (int i = 0; i < kElements; i += 2) {
    even = fmaf(a[i], b[i], even);
    odd = fmaf(a[i + 1], b[i + 1], odd);
  }
  return even + odd;
}

__device__ void scale_by(float factor, float (&x)[kElements]) {
#pragma unroll
  for (float& element : x) element *= factor;
}

__device__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

__device__ float gate_of(const Tokens& tokens, int64_t token, int head) {
  return __ldg(static_cast<const float*>(tokens.data) + token * tokens.token_stride + head);
}

// Position of a warp's rows, and of a lane within them: a group of eight lanes holds one row.
struct Place {
  int row;  // the warp's first, of all heads' rows
  int head, key_head;
  int group, lane;
};

__device__ Place place_of(const Problem& problem) {
  const int thread_lane = threadIdx.x % 32;
  Place at;
  at.row = (blockIdx.x * kWarps + threadIdx.x / 32) * kRows;
  at.head = at.row / problem.value_dim;
  at.key_head = at.head / (problem.n_heads / problem.n_key_heads);
  at.group = thread_lane / kLanes;
  at.lane = thread_lane % kLanes;
  return at;
}

struct Gates {
  float step, decay, beta, skip;
};

struct RawGates {
  float gate, dt_bias, a_log;
  float beta_or_skip;  // GDN, Mamba-2
};

template <Family kFamily>
__device__ RawGates load_gates(const BaselineArgs& args, const BaselineInputs& in, int64_t token,
                               int head) {
  return {gate_of(in.gate, token, head), __ldg(args.dt_bias + head), __ldg(args.a_log + head),
          kFamily == Family::kGdn ? gate_of(in.beta, token, head) : __ldg(args.skip + head)};
}

template <Family kFamily>
__device__ Gates gates_of(const RawGates& raw, const Problem& problem) {
  Gates out = {};
  out.step = softplus(raw.gate + raw.dt_bias);
  out.decay = expf(-expf(raw.a_log) * out.step);
  if constexpr (kFamily == Family::kGdn) {
    out.beta = problem.beta_scale * reciprocal(1.0f + expf(-raw.beta_or_skip));
  } else {
    out.skip = raw.beta_or_skip;
  }
  return out;
}

// One token through the lane's part of the state; y to args.out if kOutput.
template <Family kFamily, int kChunk, bool kOutput>
__device__ void apply(const BaselineArgs& args, const Problem& problem, const BaselineInputs& in,
                      int64_t token, const Place& at, float (&state)[kLaneRows][kElements]) {
  const int64_t value_at = at.row + at.group * kLaneRows;
  float key[kElements], query[kElements];
  load_keys<kChunk>(in.key, token, at.key_head, at.lane, key);
  if constexpr (kOutput) load_keys<kChunk>(in.query, token, at.key_head, at.lane, query);
  const uint2 value_bits = __ldg(reinterpret_cast<const uint2*>(
      static_cast<const __nv_bfloat16*>(in.value.data) + token * in.value.token_stride + value_at));
  float value[kLaneRows], y[kLaneRows];
#pragma unroll
  for (int r = 0; r < kLaneRows; r += 2) {
    const float2 pair =
        __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(&value_bits)[r / 2]);
    value[r] = pair.x, value[r + 1] = pair.y;
  }
  const Gates gates = gates_of<kFamily>(load_gates<kFamily>(args, in, token, at.head), problem);
  const auto [step, decay, beta, skip] = gates;
  if constexpr (kFamily == Family::kGdn) {
    scale_by(rsqrtf(row_sum(dot(key, key)) + 1e-6f), key);
    if constexpr (kOutput) {
      const float norm = row_sum(dot(query, query)) + 1e-6f;
      scale_by(rsqrtf(norm * static_cast<float>(kKeyDim)), query);
    }
  }
  float key_query = 0;
  if constexpr (kOutput) key_query = row_sum(dot(key, query));
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) {
    float u = step * value[r];
    if constexpr (kFamily == Family::kGdn) {
      u = beta * (value[r] - decay * row_sum(dot(state[r], key)));
    }
    if constexpr (kOutput) {
      y[r] = fmaf(decay, row_sum(dot(state[r], query)), u * key_query);
      if constexpr (kFamily == Family::kMamba2) y[r] = fmaf(skip, value[r], y[r]);
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) state[r][i] = fmaf(u, key[i], decay * state[r][i]);
  }
  if constexpr (kOutput) {
    if (at.lane == 0) {
      uint2 bits;
      __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&bits);
      pairs[0] = __floats2bfloat162_rn(y[0], y[1]);
      pairs[1] = __floats2bfloat162_rn(y[2], y[3]);
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(args.out.data) +
                                token * args.out.token_stride + value_at) = bits;
    }
  }
}

template <Family kFamily, typename State>
__global__ void __launch_bounds__(32 * kWarps, 8)
    baseline_kernel(const BaselineArgs args, const Problem problem) {
  constexpr int kChunk = State::kChunk;
  const Place at = place_of(problem);
  if (at.row >= problem.n_heads * problem.value_dim) return;
  const BaselineRow row = args.rows[blockIdx.y];
  if (row.read_slot < 0) return;

  const int64_t first = (int64_t{at.row} + at.group * kLaneRows) * kKeyDim + at.lane * kChunk;
  typename State::Type* states = static_cast<typename State::Type*>(args.state) + first;

  float state[kLaneRows][kElements];
  const typename State::Type* from = states + row.read_slot * args.state_slot_stride;
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
    for (int c = 0; c < kElements / kChunk; ++c) {
      State::load(from + r * kKeyDim + c * kLanes * kChunk, state[r] + c * kChunk);
    }
  }
  dependencies_wait();
  const auto write = [&](int32_t slot) {
    if (slot < 0) return;
    typename State::Type* to = states + slot * args.state_slot_stride;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int c = 0; c < kElements / kChunk; ++c) {
        State::store(state[r] + c * kChunk, to + r * kKeyDim + c * kLanes * kChunk);
      }
    }
  };
  for (int t = 0; t < row.n_kept; ++t) {
    apply<kFamily, kChunk, false>(args, problem, args.kept, row.kept_token + t, at, state);
  }
  if (row.n_kept > 0) write(row.write_slot);
  for (int t = 0; t < row.n_tokens; ++t) {
    apply<kFamily, kChunk, true>(args, problem, args.inputs, row.token + t, at, state);
    if (args.snapshot_slots != nullptr) {
      write(args.snapshot_slots[int64_t{blockIdx.y} * args.snapshot_stride + t]);
    }
  }
}

// One token of a narrow state. A warp computes its rows four at a time with the next eight in
// flight, so that it needs few registers and many warps fit.
template <Family kFamily, typename State>
__global__ void __launch_bounds__(32 * kWarps, 12)
    one_token_kernel(const BaselineArgs args, const Problem problem) {
  constexpr int kChunk = State::kChunk, kChunks = kElements / kChunk;
  constexpr int kAtOnce = 32 / kLanes;
  const Place at = place_of(problem);
  if (at.row >= problem.n_heads * problem.value_dim) return;
  const BaselineRow row = args.rows[blockIdx.y];
  if (row.read_slot < 0 || row.n_tokens == 0) return;

  const int first_row = at.row + at.group;
  typename State::Type* states = static_cast<typename State::Type*>(args.state) +
                                 int64_t{first_row} * kKeyDim + at.lane * kChunk;
  const typename State::Type* from = states + row.read_slot * args.state_slot_stride;
  struct Part {
    uint4 chunks[kChunks];
  };
  const auto load = [&](int i) {
    Part part;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      part.chunks[c] = __ldcs(
          reinterpret_cast<const uint4*>(from + i * kAtOnce * kKeyDim + c * kLanes * kChunk));
    }
    return part;
  };
  Part now = load(0), next = load(1);
  dependencies_wait();

  // All loads before the first branch: one latency.
  const BaselineInputs& in = args.inputs;
  const RawGates raw = load_gates<kFamily>(args, in, row.token, at.head);
  // A lane fetches the value of row `thread % kRows`, and keeps the output of its group's row
  // `lane`.
  const float values = __bfloat162float(static_cast<const __nv_bfloat16*>(
      in.value.data)[row.token * in.value.token_stride + at.row + threadIdx.x % kRows]);
  const int32_t slot = args.snapshot_slots[blockIdx.y];
  float key[kElements], query[kElements];
  load_keys<kChunk>(in.key, row.token, at.key_head, at.lane, key);
  load_keys<kChunk>(in.query, row.token, at.key_head, at.lane, query);
  const auto [step, decay, beta, skip] = gates_of<kFamily>(raw, problem);
  if constexpr (kFamily == Family::kGdn) {
    scale_by(rsqrtf(row_sum(dot(key, key)) + 1e-6f), key);
    const float norm = row_sum(dot(query, query)) + 1e-6f;
    scale_by(rsqrtf(norm * static_cast<float>(kKeyDim)), query);
  }
  const float key_query = row_sum(dot(key, query));
  float kept = 0;
  typename State::Type* to = states + slot * args.state_slot_stride;
#pragma unroll 1
  for (int i = 0; i < kLaneRows; ++i) {
    float state[kElements];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) State::unpack(now.chunks[c], state + c * kChunk);
    now = next;
    if (i + 2 < kLaneRows) next = load(i + 2);
    const float value = __shfl_sync(0xffffffffu, values, i * kAtOnce + at.group);
    float u = step * value;
    if constexpr (kFamily == Family::kGdn) {
      u = beta * (value - decay * row_sum(dot(state, key)));
    }
    float y = fmaf(decay, row_sum(dot(state, query)), u * key_query);
    if constexpr (kFamily == Family::kMamba2) y = fmaf(skip, value, y);
    if (at.lane == i) kept = y;
    if (slot >= 0) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) state[e] = fmaf(u, key[e], decay * state[e]);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        __stcs(reinterpret_cast<uint4*>(to + i * kAtOnce * kKeyDim + c * kLanes * kChunk),
               State::pack(state + c * kChunk));
      }
    }
  }
  if (at.lane < kLaneRows) {
    static_cast<__nv_bfloat16*>(
        args.out.data)[row.token * args.out.token_stride + first_row + at.lane * kAtOnce] =
        __float2bfloat16_rn(kept);
  }
}

template <Family kFamily, typename State>
void launch(const Problem& problem, const BaselineArgs& args, cudaStream_t stream, bool early) {
  const int slabs = problem.n_heads * problem.value_dim / kRows;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>((slabs + kWarps - 1) / kWarps),
                        static_cast<unsigned>(args.n_rows));
  config.blockDim = 32 * kWarps;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  auto kernel = baseline_kernel<kFamily, State>;
  if constexpr (State::kChunk == 8) {
    // A launch that fits the GPU at once does not gain from more warps.
    const bool many = int64_t{config.gridDim.x} * config.gridDim.y > kBlocksAtOnce;
    if (many && args.snapshot_slots != nullptr && args.snapshot_stride == 1) {
      kernel = one_token_kernel<kFamily, State>;
    }
  }
  cudaLaunchKernelEx(&config, kernel, args, problem);
}

template <Family kFamily>
void launch(const Problem& problem, const BaselineArgs& args, cudaStream_t stream, bool early) {
  switch (problem.checkpoint) {
    case DType::kF32:
      return launch<kFamily, Float>(problem, args, stream, early);
    case DType::kF16:
      return launch<kFamily, Half>(problem, args, stream, early);
    case DType::kBF16:
      return launch<kFamily, BFloat>(problem, args, stream, early);
    case DType::kI8:
      return;
  }
}

}  // namespace

std::string baseline_reason(const Problem& p) {
  if (p.family == Family::kKda) return "the CUDA baselines are GDN and Mamba-2";
  if (p.key_dim != kKeyDim) return "the CUDA baselines have a key dim of 128";
  if (p.value_dim % kRows != 0) return "the CUDA baselines take value dims that 16 divides";
  if (p.activation != DType::kBF16) return "the CUDA baselines take bf16 activations";
  if (p.checkpoint == DType::kI8) return "the CUDA baselines have no int8 state";
  if (p.n_key_heads < 1 || p.n_heads % p.n_key_heads != 0) {
    return "n_key_heads does not divide n_heads";
  }
  return "";
}

void baseline_step(const Problem& problem, const BaselineArgs& args, cudaStream_t stream,
                   bool early) {
  if (args.n_rows == 0) return;
  if (problem.family == Family::kGdn) {
    launch<Family::kGdn>(problem, args, stream, early);
  } else {
    launch<Family::kMamba2>(problem, args, stream, early);
  }
}

}  // namespace replayssm::cuda
