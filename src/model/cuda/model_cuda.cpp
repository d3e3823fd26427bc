#include "model/cuda/model_cuda.h"

#include <algorithm>

#include "core/error.h"
#include "model/cuda/fill.h"
#include "model/recurrent_shape.h"
#include "replay/cuda/baselines/baselines.h"

namespace replayssm {
namespace {

constexpr int32_t kLongestWindow = 16;

class Planner {
 public:
  explicit Planner(ModelCuda& model) : model_(model) {}

  void add(const Mamba2Spec& mamba) {
    Problem problem = shape_of(mamba);
    problem.ring = DType::kBF16;
    add_recurrent(problem, mamba.conv_channels(), mamba.conv_width, mamba.n_heads);
  }

  void add(const GdnSpec& gdn) {
    Problem problem = shape_of(gdn);
    problem.ring = DType::kF16;
    add_recurrent(problem, gdn.conv_channels(), gdn.conv_width, 2 * gdn.n_value_heads);
  }

  void add(const AttentionSpec& attention) {
    AttentionLayerCuda out;
    out.kv = {attention.n_kv_heads, attention.head_dim, DType::kBF16};
    if (attention.rotary_dims > 0) {
      auto& ropes = model_.ropes;
      const auto same = std::find_if(ropes.begin(), ropes.end(), [&](const RopeCuda& known) {
        return known.rotary_dims == attention.rotary_dims && known.theta == attention.rope_theta;
      });
      out.rope = static_cast<int32_t>(same - ropes.begin());
      if (same == ropes.end()) {
        ropes.push_back({attention.rotary_dims, attention.rope_theta});
      }
    }
    model_.attention.push_back(out);
  }

  void add(const MlpSpec&) {}
  void add(const MoeSpec& moe) const {
    if (moe.expert_width() % 32 == 0 && moe.ff % 32 == 0) return;
    fail("the experts of ", model_.spec().model_type, " cannot run on CUDA: ", moe.expert_width(),
         " x ", moe.ff, " are no multiples of 32");
  }

 private:
  void add_recurrent(Problem problem, int64_t channels, int32_t width, int64_t gates) {
    const ModelCudaOptions& options = model_.options;
    // A multiple of B, so that an interval's rows are contiguous.
    const int32_t interval = options.interval;
    const int32_t rows = Grid::rows_for(interval, options.max_window);
    problem.grid = {interval, (rows + interval - 1) / interval * interval};
    problem.max_window = options.max_window;
    problem.activation = DType::kBF16;
    problem.checkpoint = options.checkpoint;

    RecurrentLayerCuda out;
    out.problem = problem;
    out.gates = gates;
    const int64_t values = int64_t{problem.n_heads} * problem.value_dim;
    out.state_elements = values * problem.key_dim;
    if (options.way == StateWay::kReplay) {
      auto planned = plan_cuda(problem);
      if (planned.plan == nullptr) fail_layer(planned.reason);
      out.plan = std::move(planned.plan);
      out.state_elements = out.plan->checkpoint_elements();
      out.scale_elements = out.plan->scale_elements();
      out.value_row = values;
      out.key_row = int64_t{problem.n_key_heads} * problem.key_dim;
      out.gate_row = problem.n_heads;
    } else {
      const std::string reason = cuda::baseline_reason(problem);
      if (!reason.empty()) fail_layer(reason);
    }
    ConvProblem conv;
    conv.n_channels = static_cast<int32_t>(channels);
    conv.width = width;
    conv.ring_rows = width - 1 + options.max_window;
    conv.activation = DType::kBF16;
    auto planned = plan_cuda(conv);
    if (planned.plan == nullptr) fail_layer(planned.reason);
    out.conv = std::move(planned.plan);
    model_.recurrent.push_back(std::move(out));
  }

  [[noreturn]] void fail_layer(const std::string& reason) const {
    fail("a recurrent layer of ", model_.spec().model_type, " cannot run on CUDA: ", reason);
  }

  ModelCuda& model_;
};

int64_t conv_row(const RecurrentLayerCuda& layer) { return layer.conv->problem().n_channels; }

}  // namespace

ModelCuda plan_model(const ModelDescription& description, const ModelCudaOptions& options) {
  if (options.max_window < 1 || options.max_window > kLongestWindow) {
    fail("the largest step is ", options.max_window, " tokens; on CUDA it must lie in [1, ",
         kLongestWindow, "]");
  }
  ModelCuda out;
  out.description = description;
  out.options = options;
  Planner planner(out);
  for (const LayerSpec& layer : description.spec.layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      std::visit([&](const auto& spec) { planner.add(spec); }, mixer);
    }
  }
  return out;
}

StatePoolCuda take_pools(const ModelCuda& model, const PoolSizesCuda& sizes, DeviceArena& arena) {
  const int64_t state_bytes = dtype_bytes(model.options.checkpoint);
  const bool replay = model.options.way == StateWay::kReplay;
  const char* states = replay ? "checkpoints" : "states";
  StatePoolCuda out;
  out.sizes = sizes;
  for (const RecurrentLayerCuda& layer : model.recurrent) {
    RecurrentPoolCuda pool;
    const int64_t rings = sizes.ring_slots, rows = rings * layer.problem.grid.ring_rows;
    const int64_t ring_bytes = dtype_bytes(layer.problem.ring);
    pool.state = arena.take(states, sizes.state_slots * layer.state_elements * state_bytes);
    pool.scale = arena.take_as<float>(states, sizes.state_slots * layer.scale_elements);
    if (replay) {
      pool.ring_value = arena.take("rings", rows * layer.value_row * ring_bytes);
      pool.ring_key = arena.take("rings", rows * layer.key_row * ring_bytes);
      pool.ring_gate = arena.take_as<float>("rings", rows * layer.gate_row);
    }
    pool.conv = arena.take("conv", rings * layer.conv->problem().ring_rows * conv_row(layer) * 2);
    const int64_t kept = kept_sets(model.options.way) * sizes.kept_tokens;
    if (kept > 0) {
      pool.kept_conv = arena.take("kept inputs", kept * conv_row(layer) * 2);
      pool.kept_gates = arena.take_as<float>("kept inputs", kept * layer.gates);
    }
    out.recurrent.push_back(pool);
  }
  for (const AttentionLayerCuda& layer : model.attention) {
    const int64_t page = layer.kv.page_bytes();
    out.kv.push_back({arena.take("KV pages", sizes.kv_pages * page), page});
  }
  return out;
}

ModelMemory memory_of(const ModelCuda& model) {
  ModelMemory out;
  for (const RecurrentLayerCuda& layer : model.recurrent) {
    out.checkpoint_slot += layer.state_elements * dtype_bytes(model.options.checkpoint) +
                           layer.scale_elements * int64_t{sizeof(float)};
    const int64_t row = (layer.value_row + layer.key_row) * dtype_bytes(layer.problem.ring) +
                        layer.gate_row * int64_t{sizeof(float)};
    out.ring_token += row;
    out.ring_slot += row * layer.problem.grid.ring_rows;
    out.conv_slot += conv_row(layer) * layer.conv->problem().ring_rows * 2;
    out.conv_rows += conv_row(layer) * (layer.conv->problem().width - 1) * 2;
  }
  for (const AttentionLayerCuda& layer : model.attention) {
    out.kv_page += layer.kv.page_bytes();
    out.kv_token += 2 * int64_t{layer.kv.n_kv_heads} * layer.kv.head_dim * 2;
  }
  return out;
}

StateParts state_parts(const ModelCuda& model, const StatePoolCuda& pools) {
  const PoolSizesCuda& sizes = pools.sizes;
  StateParts out;
  for (size_t i = 0; i < model.recurrent.size(); ++i) {
    const RecurrentLayerCuda& layer = model.recurrent[i];
    const RecurrentPoolCuda& pool = pools.recurrent[i];
    const int64_t rows = layer.problem.grid.ring_rows, ring_bytes = dtype_bytes(layer.problem.ring);
    const ConvProblem& conv = layer.conv->problem();
    const auto slots = [](void* data, int64_t bytes, int32_t count) {
      return StateParts::Slots{static_cast<std::byte*>(data), bytes, count};
    };
    out.layers.push_back(
        {slots(pool.state, layer.state_elements * dtype_bytes(model.options.checkpoint),
               sizes.state_slots),
         slots(pool.scale, layer.scale_elements * int64_t{sizeof(float)}, sizes.state_slots),
         slots(pool.ring_value, rows * layer.value_row * ring_bytes, sizes.ring_slots),
         slots(pool.ring_key, rows * layer.key_row * ring_bytes, sizes.ring_slots),
         slots(pool.ring_gate, rows * layer.gate_row * int64_t{sizeof(float)}, sizes.ring_slots),
         slots(pool.conv, conv.ring_rows * conv_row(layer) * 2, sizes.ring_slots), rows,
         conv.ring_rows, conv.width});
  }
  for (const ops::KvPool& pages : pools.kv) {
    out.kv.push_back(
        {static_cast<std::byte*>(pages.data), pages.page_stride_bytes, sizes.kv_pages});
  }
  return out;
}

void fill_pools(const ModelCuda& model, const StatePoolCuda& pools, const Stream& stream) {
  uint64_t key = uint64_t{1} << 32;
  const auto fill = [&](void* data, DType dtype, int64_t n, float mean, float scale) {
    if (data != nullptr) cuda::fill(data, dtype, n, key++, mean, scale, stream.get());
  };
  const PoolSizesCuda& sizes = pools.sizes;
  for (size_t i = 0; i < model.recurrent.size(); ++i) {
    const RecurrentLayerCuda& layer = model.recurrent[i];
    const RecurrentPoolCuda& pool = pools.recurrent[i];
    const Problem& p = layer.problem;
    const int64_t rows = int64_t{sizes.ring_slots} * p.grid.ring_rows;
    const bool mamba = p.family == Family::kMamba2;
    fill(pool.state, p.checkpoint, sizes.state_slots * layer.state_elements, 0,
         p.checkpoint == DType::kI8 ? 100.0f : 0.3f);
    fill(pool.scale, DType::kF32, sizes.state_slots * layer.scale_elements, 0.003f, 0.001f);
    fill(pool.ring_value, p.ring, rows * layer.value_row, 0, 0.5f);
    // GDN's keys have length one.
    fill(pool.ring_key, p.ring, rows * layer.key_row, 0, mamba ? 1.0f : 0.15f);
    fill(pool.ring_gate, DType::kF32, rows * layer.gate_row, mamba ? 0.05f : -0.05f, 0.04f);
    fill(pool.conv, DType::kBF16,
         sizes.ring_slots * layer.conv->problem().ring_rows * conv_row(layer), 0, 1);
    const int64_t kept = kept_sets(model.options.way) * sizes.kept_tokens;
    fill(pool.kept_conv, DType::kBF16, kept * conv_row(layer), 0, 1);
    fill(pool.kept_gates, DType::kF32, kept * layer.gates, 0, 1);
  }
  for (size_t i = 0; i < model.attention.size(); ++i) {
    fill(pools.kv[i].data, DType::kBF16, sizes.kv_pages * pools.kv[i].page_stride_bytes / 2, 0, 1);
  }
  check_cuda(cudaGetLastError(), "filling of pools");
  stream.wait();
}

}  // namespace replayssm
