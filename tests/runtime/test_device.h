// Where the suites of this folder run: on the CPU, and, compiled again in tests/cuda, on a GPU in
// the exact mode. One list of cases: those that a device refuses are skipped, with its reason.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"
#include "runtime/backend.h"

namespace replayssm {

// device_cpu.cpp, or tests/cuda/runtime_device_cuda.cpp.
std::unique_ptr<Device> open_device(const ops::Context& context);
using OpenDevice = std::function<std::unique_ptr<Device>(const ops::Context&)>;
// The intervals that it has for every model that it runs, the shortest first.
std::vector<int32_t> device_intervals();
// What any model costs there, more than on the CPU.
int64_t device_overhead_bytes();

inline std::shared_ptr<const Model> load_model(const std::string& folder,
                                               const ModelOptions& options) {
  ThreadPool pool(1);
  const ops::Context context(pool);
  auto model = Model::load(folder, options);
  open_device(context)->memory(*model);  // refuses what the device cannot run
  return model;
}

// Why it does not run the model.
inline std::optional<std::string> refusal_of(const std::string& folder,
                                             const ModelOptions& options) {
  ThreadPool pool(1);
  const ops::Context context(pool);
  const auto device = open_device(context);
  try {
    device->memory(*Model::load(folder, options));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// In a SetUp().
#define SKIP_IF_REFUSED(folder, options) \
  if (const auto why = refusal_of(folder, options)) GTEST_SKIP() << *why

}  // namespace replayssm
