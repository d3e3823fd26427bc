// How the CPU backend lays out a checkpoint, and what one worker's scratch holds.
//
// A checkpoint slot is [head][tile][key][16]: the sixteen state rows (value indices) of a tile are
// adjacent, so that S z is one sequential sum per lane over the keys, with no horizontal
// step, and a slot streams from memory in order. value_dim is padded to a multiple of 16 with
// zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "replay/conv.h"
#include "replay/plain.h"
#include "replay/step.h"

namespace replayssm::cpu {

inline constexpr int kTile = 16;         // state rows in a tile
inline constexpr int kChunk = 16;        // window tokens computed together
inline constexpr int kMaxUnitHeads = 4;  // heads of one key head computed together

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

struct Layout {
  explicit Layout(const Problem& p)
      : n_tiles(static_cast<int>(round_up(p.value_dim, kTile) / kTile)),
        value_padded(n_tiles * kTile),
        key_padded(static_cast<int>(round_up(p.key_dim, kTile))),
        heads_per_key(p.n_heads / p.n_key_heads),
        unit_heads(heads_per_key < kMaxUnitHeads ? heads_per_key : kMaxUnitHeads),
        units_per_key(static_cast<int>(round_up(heads_per_key, unit_heads) / unit_heads)),
        head_elements(static_cast<int64_t>(p.key_dim) * value_padded) {}

  int n_tiles, value_padded, key_padded;
  int heads_per_key, unit_heads, units_per_key;  // a unit of work: some heads of one key head
  int64_t head_elements;                         // one head's checkpoint
};

// Scratch of one worker; every pointer is 64-byte aligned. B rows of the current grid interval are
// kept widened to fp32 exactly as the ring holds them.
struct Scratch {
  float* keys;           // [B][key_padded] ring keys of the interval, zero-padded
  float* fold_keys;      // KDA: [B][key_padded] keys times their decay to the interval's end
  float* state_decay;    // [key_dim] what a fold multiplies the state with
  float* values;         // [unit_heads][B][value_padded] ring values
  float* log_decay;      // prefix sums of log decay: [unit_heads][B], KDA [B][key_padded]
  float* log_decay_low;  // and what fp32 lost of them
  float* gates;          // [unit_heads][B] Mamba-2's dt
  float* operands;       // [2 * kChunk][key_padded] z: k_t and q_t of each token; Mamba-2: C_t
  float* decayed;        // KDA: operands with e^{G_t}
  float* dots;           // [2 * kChunk][B] k_j . z
  float* weights_key;    // [kChunk][B] with decay, for u_t
  float* weights_query;  // [kChunk][B] with decay, for y_t
  float* products;       // [2 * kChunk][value_padded] S z
  float* weighted;       // [B][2 * 16] ring values of some tiles with their fold weights
  float* tile;           // [2][key_dim][16] fp32 tiles before their rounding
  float* beta;           // [kChunk]
  float* decay;          // [kChunk] e^{G_t}
  float* scale;          // [unit_heads][value_padded] scales of `state`
  void* state;           // [unit_heads][head_elements] checkpoint dtype: folds that stay on chip

  // Sets the pointers into `base` (null only measures) and returns the bytes used.
  size_t place(const Problem& p, const Layout& l, char* base) {
    size_t used = 0;
    auto take = [&](int64_t bytes) {
      char* at = base == nullptr ? nullptr : base + used;
      used += static_cast<size_t>(round_up(bytes, 64));
      return at;
    };
    auto floats = [&](int64_t n) { return reinterpret_cast<float*>(take(n * 4)); };
    const int64_t b = p.grid.interval;
    keys = floats(b * l.key_padded);
    fold_keys = floats(p.family == Family::kKda ? b * l.key_padded : 0);
    state_decay = floats(p.key_dim);
    values = floats(l.unit_heads * b * l.value_padded);
    log_decay = floats(p.family == Family::kKda ? b * l.key_padded : l.unit_heads * b);
    log_decay_low = floats(p.family == Family::kKda ? b * l.key_padded : l.unit_heads * b);
    gates = floats(l.unit_heads * b);
    operands = floats(int64_t{2} * kChunk * l.key_padded);
    decayed = floats(p.family == Family::kKda ? int64_t{2} * kChunk * l.key_padded : 0);
    dots = floats(2 * kChunk * b);
    weights_key = floats(kChunk * b);
    weights_query = floats(kChunk * b);
    products = floats(int64_t{2} * kChunk * l.value_padded);
    weighted = floats(b * 2 * kTile);
    tile = floats(int64_t{2} * p.key_dim * kTile);
    beta = floats(kChunk);
    decay = floats(kChunk);
    scale = floats(l.unit_heads * l.value_padded);
    state = take(l.unit_heads * l.head_elements * dtype_bytes(p.checkpoint));
    return used;
  }
};

// Scratch of one worker of the plain recurrence: kChunk tokens of one head.
struct PlainScratch {
  float* keys;     // [kChunk][key_padded]
  float* queries;  // [kChunk][key_padded]
  float* decay;    // [kChunk][key_dim]
  float* beta;     // [kChunk]: beta, Mamba-2: dt
  char* state;     // [head_elements], state dtype

  size_t place(const Problem& p, const Layout& l, char* base) {
    const int64_t row = int64_t{kChunk} * l.key_padded * 4;
    keys = reinterpret_cast<float*>(base);
    queries = reinterpret_cast<float*>(base + row);
    decay = reinterpret_cast<float*>(base + 2 * row);
    beta = reinterpret_cast<float*>(base + 3 * row);
    state = base + 3 * row + kChunk * 4;
    return static_cast<size_t>(3 * row + kChunk * 4 + l.head_elements * dtype_bytes(p.checkpoint));
  }
};

// The functions that each instruction set provides.
struct StepKernels {
  // Computes heads [head_begin, head_end) of one key head for one row: outputs, ring values and
  // gates, and the written fold; a step's ring keys with the key head's first unit, since a step
  // never writes a row that is still to be read. `sweep` commits each interval before the next.
  // The caller's next unit is [head_end, next_end) of the same row. Adds to *saturated.
  void (*unit)(const Problem&, const Layout&, const StepArgs&, const Row&, int head_begin,
               int head_end, int next_end, bool sweep, char* scratch, int64_t* saturated);
  // Writes a sweep's ring keys of one key head.
  void (*write_sweep_keys)(const Problem&, const Layout&, const StepArgs&, const Row&, int key_head,
                           char* scratch);
  void (*export_head)(const Problem&, const void* state, const float* scale, float* canonical);
  void (*import_head)(const Problem&, const Layout&, const float* canonical, void* state,
                      float* scale, char* scratch);
  void (*plain)(const Problem&, const Layout&, const PlainArgs&, const Row&,
                const int32_t* write_slots, int head, char* scratch);
  void (*conv)(const ConvProblem&, const ConvArgs&, const Row&, int channel_begin, int channel_end);
};

namespace portable {
extern const StepKernels kStepKernels;
}
namespace avx2 {
extern const StepKernels kStepKernels;
}
namespace avx512 {
extern const StepKernels kStepKernels;
}

}  // namespace replayssm::cpu
