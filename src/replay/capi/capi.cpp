// The functions of replayssm.h: check, convert, call the backend.
#include <replayssm/replayssm.h>

#include <memory>
#include <new>

#include "replay/capi/backend.h"
#include "replay/capi/checks.h"
#include "replay/capi/error.h"

struct rssm_plan {
  std::shared_ptr<const replayssm::capi::Layer> layer;
};
struct rssm_conv_plan {
  std::shared_ptr<const replayssm::capi::Conv> conv;
};

namespace replayssm::capi {
namespace {

// Nothing but a lack of memory is thrown below, and nothing may be thrown through C.
template <typename Body>
rssm_status guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(RSSM_NO_MEMORY, "out of memory");
  }
}

template <typename Handle, typename T>
rssm_status hand_out(PlanResult<T> planned, Handle** out) {
  if (planned.plan == nullptr) return fail(RSSM_UNSUPPORTED, "%s", planned.reason.c_str());
  *out = new Handle{std::move(planned.plan)};
  return RSSM_OK;
}

rssm_status run(const rssm_plan* plan, Call call, const rssm_step_args* from, void* stream) {
  if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
  const Layer& layer = *plan->layer;
  StepArgs args;
  ParallelFor parallel;
  if (rssm_status s = check(layer, call, from, &args, &parallel); s != RSSM_OK) return s;
  if (args.n_rows == 0) return RSSM_OK;
  if (call == Call::kSweep) return layer.sweep(args, parallel, stream);
  return layer.step(args, parallel, call == Call::kStep ? from->hints : 0, stream);
}

rssm_status commit_one(const rssm_plan* plan, const rssm_row* row, bool is_sweep, int64_t advance,
                       rssm_sequence* sequence) {
  if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
  if (row == nullptr) return fail(RSSM_NULL, "row is null");
  if (sequence == nullptr) return fail(RSSM_NULL, "sequence is null");
  SequenceState state = {sequence->n, sequence->c, sequence->checkpoint_slot, sequence->ring_slot};
  if (commit_row(plan->layer->problem().grid, to_row(*row), is_sweep, advance, state) !=
      Status::kOk) {
    if (state.n != row->n || state.c != row->c) {
      return fail(RSSM_OUT_OF_RANGE, "row.n and row.c are not the sequence's: it has moved since");
    }
    return is_sweep ? fail(RSSM_OUT_OF_RANGE, "row is no sweep's")
                    : fail(RSSM_OUT_OF_RANGE, "advance = %lld is outside the row's window",
                           static_cast<long long>(advance));
  }
  *sequence = {state.n, state.c, state.checkpoint_slot, state.ring_slot};
  return RSSM_OK;
}

const char* text_of(int32_t status) {
  switch (status) {
    case RSSM_OK:
      return "ok";
    case RSSM_BAD_SIZE:
      return "a struct's size is not this version's";
    case RSSM_NULL:
      return "a pointer is null";
    case RSSM_OUT_OF_RANGE:
      return "a number is out of range";
    case RSSM_MISALIGNED:
      return "a pointer or stride is misaligned";
    case RSSM_UNSUPPORTED:
      return "not supported by this backend";
    case RSSM_NO_MEMORY:
      return "out of memory";
    case RSSM_DEVICE_ERROR:
      return "a CUDA call failed";
    default:
      return "unknown status";
  }
}

}  // namespace
}  // namespace replayssm::capi

using namespace replayssm;
using capi::Call;
using capi::fail;
using capi::guarded;

int32_t rssm_version(void) { return RSSM_VERSION; }

const char* rssm_status_text(int32_t status) { return capi::text_of(status); }

const char* rssm_last_error(void) { return capi::last_error(); }

rssm_status rssm_plan_create(const rssm_problem* problem, rssm_plan** plan) {
  return guarded([&] {
    if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
    *plan = nullptr;
    Problem p;
    if (rssm_status s = capi::check(problem, &p); s != RSSM_OK) return s;
    return capi::hand_out(problem->backend == RSSM_CUDA ? capi::layer_cuda(p) : capi::layer_cpu(p),
                          plan);
  });
}

void rssm_plan_destroy(rssm_plan* plan) { delete plan; }

rssm_status rssm_plan_sizes(const rssm_plan* plan, rssm_sizes* sizes) {
  if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
  if (sizes == nullptr) return fail(RSSM_NULL, "sizes is null");
  if (sizes->size != sizeof(rssm_sizes)) {
    return fail(RSSM_BAD_SIZE, "sizes.size = %zu, not %zu", sizes->size, sizeof(rssm_sizes));
  }
  const capi::Layer& layer = *plan->layer;
  const Problem& p = layer.problem();
  const int64_t values = int64_t{p.n_heads} * p.value_dim;
  sizes->checkpoint_elements = layer.checkpoint_elements();
  sizes->scale_elements = layer.scale_elements();
  sizes->canonical_elements = values * p.key_dim;
  sizes->ring_value_elements = values;
  sizes->ring_key_elements = int64_t{p.n_key_heads} * p.key_dim;
  sizes->ring_gate_elements =
      p.family == Family::kKda ? int64_t{p.n_heads} * p.key_dim : int64_t{p.n_heads};
  sizes->stride_multiple = layer.memory().stride_multiple;
  sizes->alignment_bytes = layer.memory().alignment;
  return RSSM_OK;
}

size_t rssm_workspace_bytes(const rssm_plan* plan, int32_t n_workers) {
  return plan == nullptr || n_workers < 1 ? 0 : plan->layer->workspace_bytes(n_workers);
}

rssm_status rssm_step(const rssm_plan* plan, const rssm_step_args* args, void* stream) {
  return guarded([&] { return capi::run(plan, Call::kStep, args, stream); });
}

rssm_status rssm_sweep(const rssm_plan* plan, const rssm_step_args* args, void* stream) {
  return guarded([&] { return capi::run(plan, Call::kSweep, args, stream); });
}

rssm_status rssm_fold(const rssm_plan* plan, const rssm_step_args* args, void* stream) {
  return guarded([&] { return capi::run(plan, Call::kFold, args, stream); });
}

rssm_status rssm_commit_row(const rssm_plan* plan, const rssm_row* row, int64_t advance,
                            rssm_sequence* sequence) {
  return capi::commit_one(plan, row, /*is_sweep=*/false, advance, sequence);
}

rssm_status rssm_commit_sweep_row(const rssm_plan* plan, const rssm_row* row,
                                  rssm_sequence* sequence) {
  return capi::commit_one(plan, row, /*is_sweep=*/true, 0, sequence);
}

rssm_status rssm_commit(const rssm_plan* plan, const rssm_commit_args* args, void* stream) {
  return guarded([&] {
    if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
    CommitArgs to;
    if (rssm_status s = capi::check(args, &to); s != RSSM_OK) return s;
    return to.n_rows == 0 ? RSSM_OK : plan->layer->commit(to, stream);
  });
}

rssm_status rssm_export_checkpoint(const rssm_plan* plan, const void* slot, const float* scale,
                                   float* canonical, void* stream) {
  return guarded([&] {
    if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
    const capi::Layer& layer = *plan->layer;
    if (rssm_status s = capi::check_slot(layer, slot, scale, canonical); s != RSSM_OK) return s;
    return layer.export_checkpoint(slot, scale, canonical, stream);
  });
}

rssm_status rssm_import_checkpoint(const rssm_plan* plan, const float* canonical, void* slot,
                                   float* scale, void* stream) {
  return guarded([&] {
    if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
    const capi::Layer& layer = *plan->layer;
    if (rssm_status s = capi::check_slot(layer, slot, scale, canonical); s != RSSM_OK) return s;
    return layer.import_checkpoint(canonical, slot, scale, stream);
  });
}

rssm_status rssm_conv_plan_create(const rssm_conv_problem* problem, rssm_conv_plan** plan) {
  return guarded([&] {
    if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
    *plan = nullptr;
    ConvProblem p;
    if (rssm_status s = capi::check(problem, &p); s != RSSM_OK) return s;
    return capi::hand_out(problem->backend == RSSM_CUDA ? capi::conv_cuda(p) : capi::conv_cpu(p),
                          plan);
  });
}

void rssm_conv_plan_destroy(rssm_conv_plan* plan) { delete plan; }

rssm_status rssm_conv(const rssm_conv_plan* plan, const rssm_conv_args* args, void* stream) {
  return guarded([&] {
    if (plan == nullptr) return fail(RSSM_NULL, "plan is null");
    ConvArgs to;
    ParallelFor parallel;
    if (rssm_status s = capi::check(*plan->conv, args, &to, &parallel); s != RSSM_OK) return s;
    if (to.n_rows == 0) return RSSM_OK;
    return plan->conv->run(to, args->n_tokens, parallel, stream);
  });
}
