// The inner calls of Linear for weights of few bits. Plain data only, as in linear_kernels.h.
//
// A panel of 64 outputs is a run of groups. Of each:
//
//   [super, f16 x 64] [super min, f16 x 64]   if the format has them, before the first group of 256
//   [scale x 64] [min x 64]                   as stored by the format
//   codes of `group` inputs; short last groups are filled with code 0
//
//   kNibble  per 8 inputs a word per output: bits 4k input 2k, bits 16 + 4k input 2k + 1 (k < 4),
//   so
//            that a 16-bit lane holds the codes of four pairs of inputs
//   kInt6    per 16 inputs two such words of the low nibbles and one of the upper two bits: bits 2k
//            input 2k, bits 16 + 2k input 2k + 1 (k < 8); each the words of all 64 outputs together
//   kInt8    per input a byte per output
//   kE4m3    per pair of inputs two bytes per output
#pragma once

#include <cstdint>

#include "ops/cpu/linear_kernels.h"
#include "ops/quant_kinds.h"

namespace replayssm::ops {

// The values of nibbles, thrice.
struct QuantTables {
  alignas(64) uint16_t bf16[32];  // both halves alike
  alignas(64) float fp32[16];
  alignas(64) int8_t bytes[32];  // both halves alike
};

struct QuantArgs {
  PanelArgs panel;  // weight: the first packed panel
  int64_t panel_bytes = 0;
  Codes codes = Codes::kNibble;
  GroupScale scale = GroupScale::kNone;
  GroupMin min = GroupMin::kNone;
  bool super = false;
  int64_t group = 0;
  const float* output_scale = nullptr;  // of the first panel, or null
  const QuantTables* tables = nullptr;
};

constexpr int64_t kQuantMaxGroup = 128;
constexpr int64_t kQuantSuper = 256;
// Inputs whose x is held ready at a time; a multiple of kQuantSuper.
constexpr int64_t kQuantChunk = 16384;
constexpr int64_t kQuantStreamRows = 6;  // up to here codes are decoded in registers

// In floats: sums, x, sums of x by group, decoded weights, scales and mins.
constexpr int64_t kQuantSums = kMaxPanelRows * 64;
constexpr int64_t kQuantX = kQuantStreamRows * kQuantChunk;
constexpr int64_t kQuantXSums = kQuantStreamRows * kQuantChunk / 16;
constexpr int64_t kQuantDecoded = kQuantMaxGroup * 64;
constexpr int64_t kQuantScratchBytes =
    (kQuantSums + kQuantX + kQuantXSums + kQuantDecoded + 2 * 8 * 64) * 4;
static_assert(kMaxPanelRows * kQuantMaxGroup <= kQuantX);
static_assert(kMaxPanelRows * kQuantMaxGroup / 16 <= kQuantXSums);

using QuantFunction = void (*)(const QuantArgs&);

void linear_quant_portable(const QuantArgs& args);
void linear_quant_avx2(const QuantArgs& args);
void linear_quant_avx512(const QuantArgs& args);
void linear_quant_avx512bf16(const QuantArgs& args);  // x in bf16 only

}  // namespace replayssm::ops
