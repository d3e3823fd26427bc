// The plans of a model's layers on a backend, and what their state takes.
#pragma once

#include <memory>
#include <vector>

#include "core/error.h"
#include "model/model.h"
#include "model/state.h"
#include "replay/kernels.h"

namespace replayssm {

// Types: the backend's; see model/weights.h.
template <typename Types>
struct LayerPlans {
  struct Recurrent {
    std::shared_ptr<const typename Types::Plan> plan;
    std::shared_ptr<const typename Types::ConvPlan> conv;
  };
  std::vector<Recurrent> recurrent;
  std::vector<typename Types::KvShape> kv;
  StateSizes sizes;
};

// `plan` answers a Problem and a ConvProblem by a PlanResult. Throws Error if a layer has no
// kernel.
template <typename Types, typename Plan>
LayerPlans<Types> plan_layers(const Model& model, const Plan& plan) {
  LayerPlans<Types> out;
  const auto planned = [&](const auto& problem) {
    auto result = plan(problem);
    if (result.plan == nullptr) {
      fail("recurrent layer ", out.recurrent.size(), " of ", model.spec().model_type,
           " cannot run: ", result.reason);
    }
    return result.plan;
  };
  for (const RecurrentShape& shape : model.recurrent()) {
    const Problem& p = shape.problem;
    typename LayerPlans<Types>::Recurrent layer{planned(p), planned(shape.conv)};
    RecurrentSizes sizes{layer.plan->problem(), shape.conv};
    sizes.checkpoint_elements = layer.plan->checkpoint_elements();
    sizes.scale_elements = layer.plan->scale_elements();
    sizes.value_row = int64_t{p.n_heads} * p.value_dim;
    sizes.key_row = int64_t{p.n_key_heads} * p.key_dim;
    sizes.gate_row = p.n_heads;
    out.sizes.recurrent.push_back(sizes);
    out.recurrent.push_back(std::move(layer));
  }
  for (const AttentionShape& shape : model.attention()) {
    out.kv.push_back({shape.n_kv_heads, shape.head_dim, model.activation()});
    out.sizes.kv.push_back(
        {out.kv.back().page_bytes(),
         2 * int64_t{shape.n_kv_heads} * shape.head_dim * dtype_bytes(model.activation())});
  }
  if (model.spec().mtp) {
    out.sizes.hidden.row_bytes = model.spec().hidden * dtype_bytes(model.activation());
    out.sizes.hidden.ring_rows = HiddenSizes::kWidth - 1 + model.options().max_window;
  }
  return out;
}

}  // namespace replayssm
