#include "model/mixers/mixers.h"

namespace replayssm {
namespace {

Ring ring_of(Buffer& buffer, int64_t ring_rows, int64_t row_elements) {
  return {buffer.data(), ring_rows * row_elements, row_elements};
}

}  // namespace

void run_conv(const Pass& pass, const RecurrentLayer& layer, RecurrentPool& pool,
              const Vector& weight, const Vector& bias, ops::ConstMatrix x, ops::Matrix y) {
  ConvArgs args;
  args.rows = pass.rows.all.data();
  args.n_rows = static_cast<int32_t>(pass.rows.all.size());
  args.in = {x.data, x.stride};
  args.out = {y.data, y.stride};
  args.weight = weight.as<float>();
  args.bias = bias.as<float>();
  args.ring = ring_of(pool.conv, layer.conv->problem().ring_rows, layer.conv_row);
  layer.conv->run(args, pass.parallel);
}

void run_recurrence(const Pass& pass, const RecurrentLayer& layer, RecurrentPool& pool,
                    StepArgs args) {
  if (pass.observer) {
    const size_t index = static_cast<size_t>(&layer - pass.model.recurrent().data());
    pass.observer(index, args, pass.n_tokens);
  }
  args.checkpoint = pool.checkpoint.data();
  args.checkpoint_slot_stride = layer.checkpoint_elements;
  if (layer.plain != nullptr) {
    args.rows = pass.rows.all.data();
    args.n_rows = static_cast<int32_t>(pass.rows.all.size());
    args.workspace = pass.recurrent_workspace;
    layer.plain->run({args, pass.rows.state_slots, pass.rows.state_slots_stride}, pass.parallel);
    return;
  }
  const int64_t ring_rows = layer.plan->problem().grid.ring_rows;
  args.scale = pool.scale.as<float>();
  args.scale_slot_stride = layer.scale_elements;
  args.ring_value = ring_of(pool.ring_value, ring_rows, layer.ring_value_row);
  args.ring_key = ring_of(pool.ring_key, ring_rows, layer.ring_key_row);
  args.ring_gate = ring_of(pool.ring_gate, ring_rows, layer.ring_gate_row);
  args.n_saturated = pass.n_saturated;
  args.workspace = pass.recurrent_workspace;
  if (!pass.rows.step.empty()) {
    args.rows = pass.rows.step.data();
    args.n_rows = static_cast<int32_t>(pass.rows.step.size());
    layer.plan->step(args, pass.parallel);
  }
  if (!pass.rows.sweep.empty()) {
    args.rows = pass.rows.sweep.data();
    args.n_rows = static_cast<int32_t>(pass.rows.sweep.size());
    layer.plan->sweep(args, pass.parallel);
  }
}

}  // namespace replayssm
