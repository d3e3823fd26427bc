// Element types, recurrence families, and the small status type of libreplayssm.
#pragma once

#include <cstddef>
#include <cstdint>

namespace replayssm {

// kI8 is a checkpoint type only: int8 with one fp32 scale per state row (value index).
enum class DType : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kI8 = 3 };

constexpr int64_t dtype_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kI8 ? 1 : 2;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kF16:
      return "fp16";
    case DType::kBF16:
      return "bf16";
    case DType::kI8:
      return "int8";
  }
  return "?";
}

enum class Family : int32_t { kMamba2 = 0, kGdn = 1, kKda = 2 };

constexpr const char* family_name(Family family) {
  switch (family) {
    case Family::kMamba2:
      return "Mamba-2";
    case Family::kGdn:
      return "GDN";
    case Family::kKda:
      return "KDA";
  }
  return "?";
}

enum class Status : int32_t { kOk = 0, kOutOfRange = 1 };

// The caller's threads: run(ctx, count, function, arg) must call
// function(arg, index, worker) once for every index in [0, count), with worker in [0, n_workers).
struct ParallelFor {
  using Function = void (*)(const void* arg, int64_t index, int worker);
  void (*run)(void* ctx, int64_t count, Function function, const void* arg) = nullptr;
  void* ctx = nullptr;
  int n_workers = 1;
};

}  // namespace replayssm
