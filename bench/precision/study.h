// How much each way of keeping a recurrent state loses: the library's own outputs against the
// recurrence in double, from the same inputs.
//
//   figure = ||y - y64|| / ||y64|| over the last tokens of a sequence
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "replay/step.h"

namespace replayssm::study {

// One layer's inputs over one sequence. Values are fp32, so that only the scheme rounds.
struct LayerInputs {
  std::string name;
  Problem problem;  // family, dims and gates; the scheme sets grid and dtypes
  int64_t n_tokens = 0;
  std::vector<float> query, key;            // [n_tokens, n_key_heads, key_dim]
  std::vector<float> value;                 // [n_tokens, n_heads, value_dim]
  std::vector<float> gate;                  // [n_tokens, n_heads], KDA [n_tokens, n_heads, key_dim]
  std::vector<float> beta;                  // [n_tokens, n_heads]; empty for Mamba-2
  std::vector<float> a_log, dt_bias, skip;  // as in StepArgs
};

// How the state is kept: the plain recurrence rounds it at every token, replay at every grid point.
struct Scheme {
  bool plain = false;
  DType ring = DType::kF32;  // replay only
  DType checkpoint = DType::kF32;
  int interval = 16;  // replay only

  std::string name() const;
  // Bytes read and written per state element and token when decoding, without the ring.
  double bytes_per_element() const;
};

// The schemes of docs/precision.md, in the order of its tables.
std::vector<Scheme> schemes();

struct Result {
  double error = 0;
  int64_t n_saturated = 0;  // values that fp16 could not hold
};

// y64 of the last n_measured tokens, [n_measured, n_heads, value_dim].
std::vector<double> exact_outputs(const LayerInputs& inputs, int64_t n_measured);

Result measure(const LayerInputs& inputs, const Scheme& scheme, const std::vector<double>& exact,
               ThreadPool& pool);

// How strongly the synthetic state forgets.
enum class Decay { kStrong, kWeak, kNone };

// One head of Gaussian inputs in bf16. GDN and KDA: K = V = 64, beta = sigmoid(N(0, 1)),
// log alpha = -e^{N(-1, 1)} d with d = 1, 0.01, 0. Mamba-2: P = 64, N = 128, A = -1.5,
// dt = softplus(N(0, 1) + softplus^-1(m)) with m = 0.1, 0.01, 0.001.
LayerInputs synthetic(Family family, Decay decay, int64_t n_tokens, uint64_t seed);

// One layer's inputs from a safetensors file of tensors named as above (F32, F16 or BF16). The
// family follows from what is there: `skip` Mamba-2, a gate per key channel KDA, else GDN.
// Optional: beta_scale [1], and decay_lower_bound [1] for KDA's bounded gate. Throws on anything
// else.
LayerInputs read_dump(const std::string& path);

}  // namespace replayssm::study
