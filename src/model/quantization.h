// In which format the files keep each module's weight. The tensors of a module decide; what a
// configuration says of the whole only helps to name what the tensors do not tell.
//
//   shapes: o outputs, i inputs, g inputs that share a scale
//   kFloat        weight F32, F16 or BF16
//   kFp8Tensor    weight F8_E4M3 [o, i], weight_scale of one element
//   kFp8Channel   the same, weight_scale [o, 1] or [o]
//   kFp8Block     the same, weight_scale_inv or weight_scale [ceil(o / 128), ceil(i / 128)]
//   kInt8Channel  weight I8 [o, i], weight_scale [o, 1] or [o]
//   kNvfp4        weight U8 [o, i / 2], weight_scale F8_E4M3 [o, i / 16], weight_scale_2 F32: both
//                 multiply
//   kNvfp4Packed  weight_packed U8 [o, i / 2], weight_scale F8_E4M3 [o, i / 16],
//                 weight_global_scale F32: divides
//   kMxfp4        weight_packed U8 [o, i / 2], weight_scale U8 or F8_E8M0 [o, i / 32]
//   kPacked       weight_packed I32 [o, i * bits / 32], weight_scale [o, i / g], weight_shape [2]
//   kGptq         qweight I32 [i * bits / 32, o], scales [i / g, o], qzeros, g_idx [i] = k / g
//   kGptqOrdered  the same, with inputs in another order
//   kAwq          qweight I32 [i, o * bits / 32], scales [i / g, o], qzeros
//   kBitsandbytes4, kBitsandbytes8   weight U8 with weight.absmax; weight I8 with SCB
//   kMlx          weight U32 [o, i * bits / 32], scales and biases [o, i / g]
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace replayssm {

enum class WeightFormat : int32_t {
  kFloat,
  kFp8Tensor,
  kFp8Channel,
  kFp8Block,
  kInt8Channel,
  kNvfp4,
  kNvfp4Packed,
  kMxfp4,
  kPacked,
  kGptq,
  kGptqOrdered,
  kAwq,
  kBitsandbytes4,
  kBitsandbytes8,
  kMlx,
  kUnknown,
};

// For people: "NVFP4".
const char* format_name(WeightFormat format);
// Whether the loaders read it.
bool is_served(WeightFormat format);

struct ModuleFormat {
  WeightFormat format = WeightFormat::kUnknown;
  int32_t bits = 0;   // of a weight
  int64_t group = 0;  // inputs that share a scale; 0: all of an output, or of the tensor
  const TensorView* weight = nullptr;  // the values, packed or not
  const TensorView* scale = nullptr;
  const TensorView* outer_scale = nullptr;  // weight_scale_2 or weight_global_scale
  const TensorView* zeros = nullptr;
  const TensorView* group_index = nullptr;
  const TensorView* input_scale = nullptr;
};

// Of "...q_proj", the name without ".weight", or of "...experts.gate_up_proj", where all experts
// are one tensor. None if the files have no weight of that module.
std::optional<ModuleFormat> module_format(const TensorFiles& files, const std::string& module);

// Of all modules that have a matrix, or that are quantised.
std::map<std::string, ModuleFormat> module_formats(const TensorFiles& files);

// "modelopt, NVFP4, KV cache FP8", as config.json and hf_quant_config.json of the folder say; empty
// if they say nothing.
std::string stated_quantization(const std::string& folder);

// Refuses modules in a format that is not read, in one line that names it and the first of them.
// Modules whose names begin with one of `skipped` are left out.
void check_formats(const std::string& folder, const TensorFiles& files,
                   const std::vector<std::string>& skipped);

}  // namespace replayssm
