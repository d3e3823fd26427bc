// From the library's own arguments to the C interface's, for the tests of the latter.
#pragma once

#include <replayssm/replayssm.h>

#include "../replay/backend.h"

namespace replayssm::test {

inline rssm_problem to_c(const Problem& p, int32_t backend) {
  rssm_problem out = {};
  out.size = sizeof(out);
  out.backend = backend;
  out.family = static_cast<int32_t>(p.family);
  out.n_heads = p.n_heads;
  out.n_key_heads = p.n_key_heads;
  out.value_dim = p.value_dim;
  out.key_dim = p.key_dim;
  out.interval = p.grid.interval;
  out.ring_rows = p.grid.ring_rows;
  out.max_window = p.max_window;
  out.activation = static_cast<int32_t>(p.activation);
  out.ring = static_cast<int32_t>(p.ring);
  out.checkpoint = static_cast<int32_t>(p.checkpoint);
  out.beta_scale = p.beta_scale;
  out.decay_gate = static_cast<int32_t>(p.decay_gate);
  out.decay_lower_bound = p.decay_lower_bound;
  return out;
}

inline rssm_conv_problem to_c(const ConvProblem& p, int32_t backend) {
  return {sizeof(rssm_conv_problem),         backend, p.n_channels, p.width, p.ring_rows,
          static_cast<int32_t>(p.activation)};
}

inline rssm_step_args to_c(const StepArgs& a, const Extents& extents) {
  const auto ring = [](const Ring& r) { return rssm_ring{r.data, r.slot_stride, r.row_stride}; };
  const auto tokens = [](const Tokens& t) { return rssm_tokens{t.data, t.token_stride}; };
  rssm_step_args out = {};
  out.size = sizeof(out);
  out.rows = reinterpret_cast<const rssm_row*>(a.rows);
  out.row_bytes = sizeof(rssm_row);
  out.n_rows = a.n_rows;
  out.n_slots = extents.n_slots;
  out.n_ring_slots = extents.n_ring_slots;
  out.n_tokens = extents.n_tokens;
  out.query = tokens(a.query);
  out.key = tokens(a.key);
  out.value = tokens(a.value);
  out.gate = tokens(a.gate);
  out.beta = tokens(a.beta);
  out.out = {a.out.data, a.out.token_stride};
  out.a_log = a.a_log;
  out.dt_bias = a.dt_bias;
  out.skip = a.skip;
  out.checkpoint = a.checkpoint;
  out.checkpoint_slot_stride = a.checkpoint_slot_stride;
  out.scale = a.scale;
  out.scale_slot_stride = a.scale_slot_stride;
  out.ring_value = ring(a.ring_value);
  out.ring_key = ring(a.ring_key);
  out.ring_gate = ring(a.ring_gate);
  out.n_saturated = a.n_saturated;
  return out;
}

inline rssm_conv_args to_c(const ConvArgs& a, const Extents& extents) {
  rssm_conv_args out = {};
  out.size = sizeof(out);
  out.rows = reinterpret_cast<const rssm_row*>(a.rows);
  out.row_bytes = sizeof(rssm_row);
  out.n_rows = a.n_rows;
  out.n_ring_slots = extents.n_ring_slots;
  out.n_tokens = extents.n_tokens;
  out.in = {a.in.data, a.in.token_stride};
  out.out = {a.out.data, a.out.token_stride};
  out.weight = a.weight;
  out.bias = a.bias;
  out.ring = {a.ring.data, a.ring.slot_stride, a.ring.row_stride};
  return out;
}

// A plan by the C interface, or its reason.
using CPlan = std::shared_ptr<rssm_plan>;
using CConvPlan = std::shared_ptr<rssm_conv_plan>;

inline CPlan c_plan(const Problem& p, int32_t backend, std::string* reason) {
  const rssm_problem problem = to_c(p, backend);
  rssm_plan* plan = nullptr;
  if (rssm_plan_create(&problem, &plan) != RSSM_OK) *reason = rssm_last_error();
  return {plan, rssm_plan_destroy};
}

inline CConvPlan c_plan(const ConvProblem& p, int32_t backend, std::string* reason) {
  const rssm_conv_problem problem = to_c(p, backend);
  rssm_conv_plan* plan = nullptr;
  if (rssm_conv_plan_create(&problem, &plan) != RSSM_OK) *reason = rssm_last_error();
  return {plan, rssm_conv_plan_destroy};
}

inline rssm_sizes sizes_of(const CPlan& plan) {
  rssm_sizes sizes = {};
  sizes.size = sizeof(sizes);
  rssm_plan_sizes(plan.get(), &sizes);
  return sizes;
}

}  // namespace replayssm::test
