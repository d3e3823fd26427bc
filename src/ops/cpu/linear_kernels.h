// The inner calls of Linear, one set per translation unit. Plain data only: these files are
// compiled with flags of newer machines, and nothing of them may be merged with code of older ones.
#pragma once

#include <cstdint>

namespace replayssm::ops {

// Rows [0, n_rows) times consecutive packed panels of 64 outputs.
struct PanelArgs {
  const void* weight = nullptr;  // first panel; panels are contiguous
  bool weight_bf16 = false;
  int64_t n_in = 0;
  int64_t n_out = 0;            // outputs left from the first panel on: the last may be partial
  const float* bias = nullptr;  // of the first panel, or null
  const void* x = nullptr;
  bool x_bf16 = false;
  int64_t x_stride = 0;
  int64_t n_rows = 0;
  void* y = nullptr;  // first row, first panel's first column
  bool y_bf16 = false;
  int64_t y_stride = 0;
  void* scratch = nullptr;  // kLinearScratchBytes
};

constexpr int64_t kMaxPanelRows = 192;           // n_rows of one call
constexpr int64_t kConvertElements = 6 * 16384;  // bf16 x widened in scratch
constexpr int64_t kLinearScratchBytes = (kMaxPanelRows * 64 + kConvertElements) * 4;

using PanelFunction = void (*)(const PanelArgs&);

void linear_portable(const PanelArgs& args);
void linear_avx2(const PanelArgs& args);
void linear_avx512(const PanelArgs& args);
void linear_avx512bf16(const PanelArgs& args);  // bf16 x bf16 only

}  // namespace replayssm::ops
