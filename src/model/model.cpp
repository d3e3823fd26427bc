#include "model/model.h"

#include <algorithm>

#include "core/error.h"
#include "model/recurrent_shape.h"

namespace replayssm {
namespace {

DType activation_of(DType stored, const ModelOptions& options) {
  const DType activation =
      options.activation.value_or(stored == DType::kF32 ? DType::kF32 : DType::kBF16);
  if (activation != DType::kF32 && activation != DType::kBF16) {
    fail("activations can be fp32 or bf16, not ", dtype_name(activation));
  }
  return activation;
}

Grid grid_of(const ModelOptions& options) {
  const int32_t interval = options.interval;
  if (interval != 8 && interval != 16 && interval != 32 && interval != 64) {
    fail("the grid interval is ", interval, "; it can be 8, 16, 32 or 64");
  }
  if (options.max_window < 1 || options.max_window > interval) {
    fail("the largest step is ", options.max_window, " tokens; it must lie in [1, ", interval,
         "], the grid interval");
  }
  return {interval, Grid::rows_for(interval, options.max_window)};
}

}  // namespace

std::shared_ptr<const Model> Model::load(const std::string& folder, const ModelOptions& options) {
  return read(folder, options, /*weights=*/true);
}

std::shared_ptr<const Model> Model::outline(const std::string& folder,
                                            const ModelOptions& options) {
  return read(folder, options, /*weights=*/false);
}

std::shared_ptr<const Model> Model::read(const std::string& folder, const ModelOptions& options,
                                         bool weights) {
  const ModelDescription description = describe_model(folder);
  const TensorFiles files = TensorFiles::open_folder(folder);
  const DType stored = stored_dtype(description, files);
  std::shared_ptr<Model> model(new Model(description.spec, stored, options));
  model->folder_ = folder;
  if (weights) model->weights_ = load_weights(description, files);
  return model;
}

std::shared_ptr<const Model> Model::plan(const ModelSpec& spec, DType stored,
                                         const ModelOptions& options) {
  return std::shared_ptr<const Model>(new Model(spec, stored, options));
}

Model::Model(const ModelSpec& spec, DType stored, const ModelOptions& options)
    : spec_(spec), options_(options), grid_(grid_of(options)) {
  activation_ = activation_of(stored, options);
  const DType half = stored == DType::kF32 ? DType::kF32 : DType::kF16;
  checkpoint_ = options.checkpoint.value_or(half);
  ring_ = options.ring.value_or(has_mixer<Mamba2Spec>(spec_) ? activation_ : half);
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    for (const auto& mixer : spec_.layers[i].mixers) {
      std::visit([&](const auto& kind) { add_mixer(kind, static_cast<int>(i)); }, mixer);
    }
  }
}

template <typename Recurrent>
void Model::add_mixer(const Recurrent& mixer, int layer) {
  const Problem shape = shape_of(mixer);
  ConvProblem conv_shape;
  conv_shape.n_channels = static_cast<int32_t>(mixer.conv_channels());
  conv_shape.width = mixer.conv_width;
  Problem problem = shape;
  problem.grid = grid_;
  problem.max_window = options_.max_window;
  problem.activation = activation_;
  problem.ring = ring_;
  problem.checkpoint = checkpoint_;
  ConvProblem conv = conv_shape;
  conv.ring_rows = conv.width - 1 + options_.max_window;
  conv.activation = activation_;

  RecurrentLayer out;
  auto conv_plan = plan_cpu(conv, options_.isa);
  if (!conv_plan.plan) fail("layer ", layer, " cannot run: ", conv_plan.reason);
  out.conv = std::move(conv_plan.plan);
  out.conv_row = conv.n_channels;
  if (options_.state == StateMode::kPlain) {
    auto plan = plan_plain_cpu(problem, options_.isa);
    if (!plan.plan) fail("layer ", layer, " cannot run: ", plan.reason);
    out.plain = std::move(plan.plan);
    out.checkpoint_elements = out.plain->checkpoint_elements();
    recurrent_.push_back(std::move(out));
    return;
  }
  auto plan = plan_cpu(problem, options_.isa);
  if (!plan.plan) fail("layer ", layer, " cannot run: ", plan.reason);
  out.plan = std::move(plan.plan);
  out.checkpoint_elements = out.plan->checkpoint_elements();
  out.scale_elements = out.plan->scale_elements();
  out.ring_value_row = int64_t{problem.n_heads} * problem.value_dim;
  out.ring_key_row = int64_t{problem.n_key_heads} * problem.key_dim;
  out.ring_gate_row = problem.n_heads;
  recurrent_.push_back(std::move(out));
}

void Model::add_mixer(const AttentionSpec& attention, int) {
  AttentionLayer out;
  out.kv = {attention.n_kv_heads, attention.head_dim, activation_};
  if (attention.rotary_dims > 0) {
    const auto same =
        std::find_if(rope_specs_.begin(), rope_specs_.end(), [&](const AttentionSpec& known) {
          return known.rotary_dims == attention.rotary_dims &&
                 known.rope_theta == attention.rope_theta;
        });
    out.rope = static_cast<int32_t>(same - rope_specs_.begin());
    if (same == rope_specs_.end()) {
      rope_specs_.push_back(attention);
      ropes_.emplace_back(attention.rotary_dims, attention.rope_theta);
    }
  }
  attention_.push_back(out);
}

ModelMemory Model::memory() const {
  ModelMemory out;
  out.weights = static_cast<int64_t>(weights_.bytes());
  for (const auto& layer : recurrent_) {
    out.checkpoint_slot += layer.checkpoint_elements * dtype_bytes(checkpoint_) +
                           layer.scale_elements * int64_t{sizeof(float)};
    const int64_t row = (layer.ring_value_row + layer.ring_key_row) * dtype_bytes(ring_) +
                        layer.ring_gate_row * int64_t{sizeof(float)};
    out.ring_token += row;
    out.ring_slot += row * grid_.ring_rows;
    const ConvProblem& conv = layer.conv->problem();
    out.conv_slot += layer.conv_row * conv.ring_rows * dtype_bytes(activation_);
    out.conv_rows += layer.conv_row * (conv.width - 1) * dtype_bytes(activation_);
  }
  for (const auto& layer : attention_) {
    out.kv_page += layer.kv.page_bytes();
    out.kv_token += 2 * int64_t{layer.kv.n_kv_heads} * layer.kv.head_dim * dtype_bytes(activation_);
  }
  return out;
}

}  // namespace replayssm
