// Weights of few bits (ops/quant.h) as the CUDA kernels keep them.
//
// A matrix is cut into tiles of 16 outputs, a tile into units of 128 inputs; units of a tile follow
// one another. A unit holds the fragments of eight products m16n8k16, one a step of 16 inputs, in
// the order in which lanes load them, then what its groups have:
//
//   codes    pieces of 512 bytes, 16 a lane
//   scales   of each g in 0..7: those of output g, then those of output g + 8, 128 / group each
//   mins     likewise
//   super    of each g: f16 of outputs g and g + 8; then, if mins have one, theirs
//
// In step s lane 4 g + c holds inputs 16 s + 4 c + {0, 1, 2, 3} of outputs g and g + 8: fragment
// registers a0 (g: 0, 1), a1 (g + 8: 0, 1), a2 (g: 2, 3), a3 (g + 8: 2, 3). Of the code of register
// j and half h (0: the lower):
//
//   kInt4, kE2m1   word s of the lane's pieces, bits 16 h + 4 j
//   kIq4           word s, bits 16 (j / 2) + 8 (j % 2) + 4 h
//   kInt6          lower four bits as kInt4; upper two in word s / 2 of a third piece, bits
//                  16 h + 8 (s % 2) + 2 j
//   kInt8          word 2 s + j / 2, byte 2 h + j % 2
//
// Outputs and inputs that only fill a tile or a unit have codes of 0; x is 0 there.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/quant.h"

namespace replayssm::ops::cuda {

enum class FewCodes : int32_t {
  kInt4,  // value + zero
  kE2m1,  // sign, exponent, mantissa; scales multiply in bf16, exactly
  kIq4,   // an index: values below 0 first, then those from 0 on
  kInt6,  // value + 32
  kInt8,  // the value
};

constexpr int64_t kFewTile = 16;   // outputs
constexpr int64_t kFewUnit = 128;  // inputs
// The sum over inputs is cut into so many segments of whole units, which are then added in order.
constexpr int64_t kFewSegments = 8;

// One form of weights. The values of a group's scales:
//   kF16, kBF16    as stored
//   kU8, kI8       times super, if there is one
//   kNone          1
//   kE4m3, kE8m0   of kE2m1 only: a byte b that stands for the bf16 of bits b * 16 + (235 << 7) or
//                  b * 128, 2^118 times the scale, or times the scale over the output's largest
// Mins as in ops/quant.h, but kZero holds all that is subtracted
// from a code.
struct FewBits {
  QuantFormat format = {};
  FewCodes codes = FewCodes::kInt4;
  int32_t zero = 0;  // kInt4: what is subtracted from all codes, before kZero's

  bool operator==(const FewBits&) const = default;

  int64_t groups() const { return kFewUnit / format.group; }  // of a unit
  // Bytes of one g; of a unit eight times that.
  int32_t scale_record() const;
  int32_t min_record() const;
  int32_t super_record() const;
  int64_t codes_bytes() const;
  int64_t unit_bytes() const;
};

// The form of a format; none if the kernels have none, or if inputs are no multiple of 16.
std::optional<FewBits> few_bits_of(const QuantFormat& format, int64_t n_in);

constexpr int64_t few_tiles(int64_t n_out) { return (n_out + kFewTile - 1) / kFewTile; }
constexpr int64_t few_units(int64_t n_in) { return (n_in + kFewUnit - 1) / kFewUnit; }
int64_t few_bits_bytes(const FewBits& form, int64_t n_out, int64_t n_in);

// Tile `tile` of the matrix into few_units(cols) * unit_bytes() bytes, and the factors of its
// outputs: y = factor * the kernels' sum. Several threads may pack at once.
void pack_few_bits(const FewBits& form, const QuantMatrix& matrix, int64_t tile, uint8_t* to,
                   float* factors);

}  // namespace replayssm::ops::cuda
