// What replay is measured against on the GPU: the recurrence as written in step.h, its state in
// registers while a window passes. One kernel serves four methods; the rows say which:
//   plain               n_tokens = 1, snapshot_slots = the read slot: the state is read and written
//   snapshots           a slot for every token of the window
//   activation replay   a pass that verifies and writes nothing; then, when the accepted tokens are
//                       known, a second one with n_kept tokens, n_tokens = 0, that rebuilds and
//                       writes
//   joint advance       n_kept tokens of the window before, a write, then the new window
// (the last two are those of "Snakes and Ladders", 2024). The inputs of the previous window are
// read in place: keeping them costs these baselines nothing. No equality of bits is guaranteed.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "replay/step.h"

namespace replayssm::cuda {

struct BaselineRow {
  int32_t read_slot = -1;   // -1: the row is skipped
  int32_t n_kept = 0;       // tokens of `kept` that the state goes through first, without outputs
  int32_t write_slot = -1;  // receives the state after them; may equal read_slot; -1: not written
  int32_t n_tokens = 0;     // tokens of `inputs` after them, with outputs
  int64_t kept_token = 0;   // indices of the first ones in the packed tensors
  int64_t token = 0;
};

// As in StepArgs; 16-byte aligned, strides multiples of eight elements. Activations are bf16.
struct BaselineInputs {
  Tokens query, key, value, gate, beta;
};

struct BaselineArgs {
  const BaselineRow* rows = nullptr;
  int32_t n_rows = 0;
  BaselineInputs kept, inputs;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* skip = nullptr;
  MutableTokens out;

  void* state = nullptr;  // row-major slots [n_heads, value_dim, key_dim]
  int64_t state_slot_stride = 0;
  // [n_rows, snapshot_stride]: the slot that receives the state after each token of `inputs`; -1:
  // not written. Null: none is. With a stride of 1 rows have one token at most, and none kept.
  const int32_t* snapshot_slots = nullptr;
  int32_t snapshot_stride = 0;
};

// Empty, or why no kernel serves the problem. Served: GDN and Mamba-2, key_dim 128, bf16
// activations, states fp32, fp16 (saturates) and bf16.
std::string baseline_reason(const Problem& problem);

// Launches one kernel; neither allocates nor synchronises; may be captured in a graph. early: rows
// and states may be fetched while the kernel before this one in the stream still runs (StepHints).
void baseline_step(const Problem& problem, const BaselineArgs& args, cudaStream_t stream,
                   bool early = false);

}  // namespace replayssm::cuda
