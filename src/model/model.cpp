#include "model/model.h"

#include <algorithm>

#include "core/error.h"
#include "model/model_source.h"
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

std::shared_ptr<const Model> Model::load(const std::string& path, const ModelOptions& options) {
  SourceModel source = read_source_model(path);
  if (options.mtp && !source.description.spec.mtp) {
    fail(path, ": has no multi-token-prediction head of one layer (mtp.* tensors) to draft with");
  }
  std::shared_ptr<Model> model(new Model(std::move(source.description), source.stored, options));
  model->path_ = path;
  return model;
}

std::shared_ptr<const Model> Model::of(const ModelDescription& description, DType stored,
                                       const ModelOptions& options) {
  return std::shared_ptr<const Model>(new Model(description, stored, options));
}

Model::Model(ModelDescription description, DType stored, const ModelOptions& options)
    : description_(std::move(description)),
      options_(options),
      stored_(stored),
      grid_(grid_of(options)) {
  activation_ = activation_of(stored, options);
  const DType half = stored == DType::kF32 ? DType::kF32 : DType::kF16;
  checkpoint_ = options.checkpoint.value_or(half);
  ring_ = options.ring.value_or(has_mixer<Mamba2Spec>(spec()) ? activation_ : half);
  for (const LayerSpec& layer : spec().layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      std::visit([&](const auto& kind) { add_mixer(kind); }, mixer);
    }
  }
  if (!options.mtp) {
    description_.spec.mtp.reset();
    return;
  }
  REPLAYSSM_CHECK(spec().mtp.has_value(), "no drafting head");
  add_mixer(spec().mtp->attention);
  // Its tensors are all in use now.
  if (description_.names.mtp) {
    std::erase(description_.names.skipped_prefixes, description_.names.mtp->prefix);
  }
}

template <typename Recurrent>
void Model::add_mixer(const Recurrent& mixer) {
  RecurrentShape out;
  out.problem = shape_of(mixer);
  out.problem.grid = grid_;
  out.problem.max_window = options_.max_window;
  out.problem.activation = activation_;
  out.problem.ring = ring_;
  out.problem.checkpoint = checkpoint_;
  out.conv.n_channels = static_cast<int32_t>(mixer.conv_channels());
  out.conv.width = mixer.conv_width;
  out.conv.ring_rows = mixer.conv_width - 1 + options_.max_window;
  out.conv.activation = activation_;
  recurrent_.push_back(out);
}

void Model::add_mixer(const AttentionSpec& attention) {
  AttentionShape out{attention.n_kv_heads, attention.head_dim, -1};
  if (attention.rotary_dims > 0) {
    const RopeShape rope{attention.rotary_dims, attention.rope_theta, attention.rope_scaling};
    const auto same = std::ranges::find(ropes_, rope);
    out.rope = static_cast<int32_t>(same - ropes_.begin());
    if (same == ropes_.end()) ropes_.push_back(rope);
  }
  attention_.push_back(out);
}

}  // namespace replayssm
