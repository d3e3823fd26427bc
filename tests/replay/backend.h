// What the suite asks of a backend. All memory is the host's: a device backend copies to and fro.
#pragma once

#include <string>
#include <vector>

#include "cases.h"
#include "core/thread_pool.h"
#include "replay/kernels.h"

namespace replayssm::test {

// How far the pools and the packed tokens reach.
struct Extents {
  int32_t n_slots = 0, n_ring_slots = 0;
  int64_t n_tokens = 0;
};

class BackendPlan {
 public:
  virtual ~BackendPlan() = default;
  virtual int64_t checkpoint_elements() const = 0;
  virtual int64_t scale_elements() const = 0;
  // A step or a sweep; workspace is the backend's own affair.
  virtual void run(StepArgs args, const Extents& extents, bool sweep, ThreadPool& pool) const = 0;
  virtual void export_checkpoint(const void* slot, const float* scale, float* canonical) const = 0;
  virtual void import_checkpoint(const float* canonical, void* slot, float* scale) const = 0;
};

class BackendConv {
 public:
  virtual ~BackendConv() = default;
  virtual void run(const ConvArgs& args, const Extents& extents, ThreadPool& pool) const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // letters and digits
  virtual PlanResult<BackendPlan> plan(const Problem& problem) const = 0;
  virtual PlanResult<BackendConv> plan(const ConvProblem& problem) const = 0;

  // A backend may lack a problem of some test; its binary lists which (tests/cuda/plans_test.cpp).
  bool takes(const Problem& problem) const { return plan(problem).plan != nullptr; }

  // True if scores enter the sums of the delta rule in fp16, and the rows of Mamba-2's folds into
  // int8 those in bf16: rounding points of its own.
  virtual bool rounds_scores() const { return false; }
  // The strides that it takes are multiples of so many elements.
  virtual int64_t stride_multiple() const { return 1; }
  // The nearest problem that it takes, and its case lists.
  virtual Problem fit(const Problem& problem) const { return problem; }
  virtual ConvProblem fit(const ConvProblem& problem) const { return problem; }
  virtual std::vector<Case> shapes() const { return shape_cases(); }
  virtual std::vector<Case> dtypes() const { return dtype_cases(); }
  virtual std::vector<Case> core() const { return core_cases(); }
};

// The backends that a test binary runs its suite over.
const std::vector<const Backend*>& backends();

}  // namespace replayssm::test
