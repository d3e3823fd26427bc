// Elementwise ops. Inputs fp32 or bf16, fp32 maths, one rounding at the output's dtype. The output
// may be one of the inputs (same memory and strides, same dtype).
#pragma once

#include <cstdint>

#include "ops/context.h"
#include "ops/linear.h"
#include "ops/matrix.h"

namespace replayssm::ops {

// y = silu(gate) * up
void silu_mul(const Context& context, ConstMatrix gate, ConstMatrix up, Matrix y);

// y = max(x, 0)^2
void relu2(const Context& context, ConstMatrix x, Matrix y);

// y = x * sigmoid(gate)      attention's output gate
void sigmoid_mul(const Context& context, ConstHeads x, ConstHeads gate, Heads y);

// x = x + scale * y          x fp32, the residual stream; an fma
void residual_add(const Context& context, Matrix x, ConstMatrix y, float scale = 1.0f);

// y = scale * x              fp32, bf16; also fp16 to either
void copy(const Context& context, ConstMatrix x, Matrix y, float scale = 1.0f);

// y[i] = scale * table[tokens[i]]     table [n_vocab, cols] fp32, bf16 or fp16
void embed(const Context& context, ConstMatrix table, const int32_t* tokens, Matrix y,
           float scale = 1.0f);
// The same from the packed weight of a tied output head: no second copy of the table.
void embed(const Context& context, const Linear& table, const int32_t* tokens, Matrix y,
           float scale = 1.0f);

}  // namespace replayssm::ops
