#include "runtime/cuda/backend_cuda.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/cuda/forward_cuda.h"
#include "ops/attention.h"
#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/sample_cuda.h"
#include "replay/cuda/sequence_cuda.h"
#include "runtime/cuda/memory_kernels.h"
#include "runtime/cuda/pass_block.h"
#include "runtime/cuda/step_shapes.h"

namespace replayssm {
namespace {

constexpr int64_t kReserve = int64_t{2} << 30;  // for the driver and its modules
// Of a graph, at most.
constexpr int64_t kMixerLaunches = 12, kOtherLaunches = 12;
constexpr int64_t kLaunchBytes = 2048;

// What goes down: pages last, for most of a long table is not written.
struct PassArrays {
  WindowArrays windows;
  int64_t* logit_tokens;  // [logits]
  ops::SamplerParams* draw_params;
  int64_t* draw_positions;
  int32_t* pages;  // [rows, n_pages]

  PassArrays(Carver& carver, const PassShape& shape)
      : windows(carver, shape),
        logit_tokens(carver.take<int64_t>(shape.n_logits)),
        draw_params(carver.take<ops::SamplerParams>(shape.n_logits)),
        draw_positions(carver.take<int64_t>(shape.n_logits)),
        pages(carver.take<int32_t>(shape.n_rows() * shape.n_pages)) {}
};

// What comes up, beside logits.
struct DrawArrays {
  int32_t* tokens;  // [logits]
  ops::SampleStatus* status;

  DrawArrays(Carver& carver, const PassShape& shape)
      : tokens(carver.take<int32_t>(shape.n_logits)),
        status(carver.take<ops::SampleStatus>(shape.n_logits)) {}
};

template <typename Arrays>
int64_t bytes_of(const PassShape& shape) {
  Carver carver(nullptr);
  const Arrays arrays(carver, shape);
  return carver.used();
}

// Rows of a product: few numbers of them, because each has its algorithms chosen once.
int64_t padded(int64_t rows, int64_t most) {
  const int64_t step = rows <= 8 ? 1 : rows <= 128 ? 8 : 64;
  return std::min((rows + step - 1) / step * step, most);
}

// A row that only folds has none.
int64_t pages_of(const Row& row) {
  return row.n_tokens == 0 ? 0 : ops::pages_for(row.start + row.n_tokens);
}

// What the kernels have no choice in.
void check_model(const Model& model) {
  if (model.options().state != StateMode::kReplay) fail("--state plain runs on the CPU only");
  if (model.activation() != DType::kBF16) {
    fail("CUDA takes models stored in bf16; activations of this one are ",
         dtype_name(model.activation()));
  }
}

ModelCuda plan_of(const Model& model) {
  ModelCuda out = plan_model(
      describe_model(model.folder()),
      {StateWay::kReplay, model.options().max_window, model.checkpoint(), model.grid().interval});
  for (const RecurrentLayerCuda& layer : out.recurrent) {
    if (layer.problem.ring != model.ring()) {
      fail("--ring-dtype: on CUDA it is ", dtype_name(layer.problem.ring), " for ",
           model.spec().model_type);
    }
  }
  return out;
}

PassShape largest_shape(const ForwardLimits& limits) {
  PassShape out;
  out.n_step = static_cast<int32_t>(limits.max_rows);
  out.n_tokens = limits.max_tokens;
  out.n_logits = limits.max_logits;
  out.n_pages = ops::pages_for(limits.max_positions);
  return out;
}

// A pass's memory beside weights and pools.
struct Scratch {
  Scratch(const ModelCuda& model, const ForwardLimits& limits, DeviceArena& arena)
      : forward(model, ForwardCudaLimits{limits.max_tokens, limits.max_logits}, arena),
        workspace(arena.take("scratch", ops::cuda::CudaContext::kWorkspaceBytes)),
        down(arena.take_as<char>("scratch", bytes_of<PassArrays>(largest_shape(limits)))),
        up(arena.take_as<char>("scratch", bytes_of<DrawArrays>(largest_shape(limits)))) {}

  ForwardCuda forward;
  void* workspace;
  char *down, *up;
};

// The driver's, for the graphs of a model.
int64_t graph_bytes(const ModelCuda& model, const ForwardLimits& limits) {
  size_t n_mixers = 0;
  for (const LayerSpec& layer : model.spec().layers) n_mixers += layer.mixers.size();
  const auto launches = static_cast<int64_t>(n_mixers) * kMixerLaunches + kOtherLaunches;
  const auto graphs = std::ssize(step_shapes(limits, model.options.max_window));
  return graphs * launches * kLaunchBytes;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Model& model, const PoolSizes& sizes, const ForwardLimits& limits, bool exact)
      : limits_(limits), model_(plan_of(model)) {
    DeviceArena counter;
    take_pools(counter, sizes);
    Scratch(model_, limits_, counter);
    const auto files = file_weights(model_.description, model.folder());
    take_weights(model_.description, counter, *files);
    const int64_t bytes = counter.used(), free = free_device_bytes();
    graph_bytes_ = graph_bytes(model_, limits_);
    if (bytes + graph_bytes_ > free) {
      fail("the model and ", sizes.ring_slots, " sequences need ", (bytes + graph_bytes_) >> 20,
           " MiB of the device, ", free >> 20, " MiB are free");
    }
    arena_ = std::make_unique<DeviceArena>(bytes);
    model_.weights = take_weights(model_.description, *arena_, *files);
    take_pools(*arena_, sizes);
    scratch_.emplace(model_, limits_, *arena_);
    const PassShape largest = largest_shape(limits_);
    down_ = Staged(bytes_of<PassArrays>(largest));
    up_ = Staged(bytes_of<DrawArrays>(largest));
    results_.resize(static_cast<size_t>(limits.max_logits));
    logits_ = PinnedBuffer(limits.max_logits * model_.spec().vocab * int64_t{sizeof(float)});
    const auto mode = exact ? ops::cuda::Mode::kExact : ops::cuda::Mode::kFast;
    context_ = std::make_unique<ops::cuda::CudaContext>(stream_.get(), scratch_->workspace, mode);
    scratch_->forward.prepare(*context_);
    for (const PassShape& shape : step_shapes(limits_, model_.options.max_window)) capture(shape);
  }

  PassResult run(const ForwardBatch& batch, std::span<const DrawRow> draws) override {
    const PassShape shape = shape_of(batch);
    send(shape, batch, draws);
    const auto graph = graphs_.find(shape);
    const bool any = std::any_of(draws.begin(), draws.end(), [](auto& row) { return row.wanted; });
    if (graph != graphs_.end()) {
      graph->second.launch(stream_);
    } else {
      enqueue(shape, any);
    }
    const auto wanted = [&](int64_t row) {
      return !draws.empty() && draws[static_cast<size_t>(row)].wanted;
    };
    const int64_t row_bytes = model_.spec().vocab * int64_t{sizeof(float)};
    const int64_t n_logits = std::ssize(batch.logit_tokens);
    for (int64_t row = 0, first = 0; row < n_logits; first = ++row) {
      if (wanted(row)) continue;
      // Neighbours go together.
      while (row + 1 < n_logits && !wanted(row + 1)) ++row;
      move(logits_.data() + first * row_bytes,
           reinterpret_cast<const char*>(scratch_->forward.logits()) + first * row_bytes,
           (row + 1 - first) * row_bytes, cudaMemcpyDeviceToHost);
    }
    stream_.wait();
    if (any) take_draws(shape, std::ssize(draws));
    return {reinterpret_cast<const float*>(logits_.data()), any ? results_.data() : nullptr};
  }

  const StateParts& parts() const override { return parts_; }
  void copy(std::span<const MemorySpan> from, std::span<const MemorySpan> to) override {
    cuda::copy_spans(from, to, stream_.get());
    check_cuda(cudaGetLastError(), "copy of a state");
  }
  void poison(std::span<const MemorySpan> spans) override {
    for (const MemorySpan& span : spans) {
      check_cuda(cudaMemsetAsync(span.data, 0xff, static_cast<size_t>(span.bytes), stream_.get()),
                 "fill with NaN");
    }
  }
  void read(std::span<const MemorySpan> from, std::byte* to) const override {
    for (const MemorySpan& span : from) {
      move(to, span.data, span.bytes, cudaMemcpyDeviceToHost);
      to += span.bytes;
    }
    stream_.wait();
  }
  void write(const std::byte* from, std::span<const MemorySpan> to) override {
    for (const MemorySpan& span : to) {
      move(span.data, from, span.bytes, cudaMemcpyHostToDevice);
      from += span.bytes;
    }
    stream_.wait();
  }

  std::vector<float> checkpoint_values(size_t layer, int32_t slot) const override {
    const Problem& problem = model_.recurrent[layer].problem;
    const StateParts::Layer& parts = parts_.layers[layer];
    std::vector<float> out(static_cast<size_t>(problem.n_heads) *
                           static_cast<size_t>(problem.value_dim * problem.key_dim));
    const auto bytes = static_cast<int64_t>(out.size() * sizeof(float));
    DeviceArena canonical(bytes);
    auto* values = canonical.take_as<float>("checkpoint", std::ssize(out));
    const MemorySpan scale = parts.scale.at(slot);
    export_checkpoint_cuda(problem, parts.checkpoint.at(slot).data,
                           reinterpret_cast<const float*>(scale.bytes == 0 ? nullptr : scale.data),
                           values, stream_.get());
    move(out.data(), values, bytes, cudaMemcpyDeviceToHost);
    stream_.wait();
    return out;
  }
  std::vector<float> page_values(size_t layer, int32_t page) const override {
    const ops::cuda::KvShapeCuda& shape = model_.attention[layer].kv;
    const MemorySpan from = parts_.kv[layer].at(page);
    std::vector<std::byte> bytes(static_cast<size_t>(from.bytes));
    read({&from, 1}, bytes.data());
    return ops::cuda::page_values(shape, bytes);
  }
  MemorySpan embedding() const override {
    const int64_t rows = model_.spec().vocab;
    return {static_cast<std::byte*>(const_cast<void*>(model_.weights.embedding)),
            rows * model_.spec().hidden * 2};
  }

  int64_t state_bytes() const override {
    int64_t out = 0;
    for (const auto& [purpose, bytes] : arena_->use()) {
      if (purpose != "weights" && purpose != "scratch" && purpose != "logits") out += bytes;
    }
    return out;
  }
  int64_t scratch_bytes() const override {
    int64_t out = 0;
    for (const auto& [purpose, bytes] : arena_->use()) {
      if (purpose == "scratch" || purpose == "logits") out += bytes;
    }
    return out + graph_bytes_;
  }
  int64_t n_saturated() const override { return scratch_->forward.n_saturated(); }

 private:
  void move(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_.get()),
               "copy between host and device");
  }

  void take_draws(const PassShape& shape, int64_t n) {
    up_.receive(bytes_of<DrawArrays>(shape));
    Carver carver(up_.host());
    const DrawArrays draws(carver, shape);
    for (int64_t i = 0; i < n; ++i) {
      results_[static_cast<size_t>(i)] = {draws.status[i], draws.tokens[i]};
    }
  }

  // One copy down, the pass, every row's token (those that nobody wants are drawn greedily), one
  // copy up.
  void enqueue(const PassShape& shape, bool draw) {
    Carver down(scratch_->down), up(scratch_->up);
    const PassArrays arrays(down, shape);
    move(scratch_->down, down_.pinned(), down.used(), cudaMemcpyHostToDevice);
    PassCuda pass = pass_of(shape, arrays.windows, arrays.pages);
    pass.logit_tokens = arrays.logit_tokens;
    scratch_->forward.run(*context_, pass, pools_);
    if (!draw) return;
    const DrawArrays drawn(up, shape);
    const int64_t vocab = model_.spec().vocab;
    ops::cuda::sample(
        *context_, {scratch_->forward.logits(), DType::kF32, shape.n_logits, vocab, vocab},
        {arrays.draw_params, nullptr, arrays.draw_positions}, drawn.tokens, drawn.status);
    move(up_.pinned(), scratch_->up, up.used(), cudaMemcpyDeviceToHost);
  }

  // The graph of a shape, after a pass of it in which products choose their algorithms.
  void capture(const PassShape& shape) {
    send(shape, {}, {});
    enqueue(shape, true);
    stream_.wait();
    graphs_[shape] = Graph::capture(stream_, [&] { enqueue(shape, true); });
  }

  void take_pools(DeviceArena& arena, const PoolSizes& sizes) {
    PoolSizesCuda own;
    own.state_slots = sizes.checkpoint_slots;
    own.ring_slots = sizes.ring_slots;
    own.kv_pages = sizes.kv_pages;
    pools_ = replayssm::take_pools(model_, own, arena);
    parts_ = state_parts(model_, pools_);
    if (!sizes.snapshots) return;
    const int64_t each = memory_of(model_).conv_rows;
    const int64_t bytes = sizes.checkpoint_slots * each;
    parts_.conv_beside = {static_cast<std::byte*>(arena.take("conv", bytes)), each,
                          sizes.checkpoint_slots};
  }

  PassShape shape_of(const ForwardBatch& batch) const {
    PassShape out;
    out.single = true;
    for (const ForwardRow& r : batch.rows) {
      if (r.row.read_slot < 0) continue;
      ++(r.phase == Phase::kStep ? out.n_step : out.n_sweep);
      out.longest = std::max(out.longest, r.row.n_tokens);
      out.n_pages = std::max(out.n_pages, pages_of(r.row));
      const bool single = r.row.n_tokens <= 1 && r.row.start == r.row.n;
      out.single = out.single && (r.phase == Phase::kSweep || single);
    }
    // A pass that only folds has a token of no row, too.
    out.n_tokens = std::max<int64_t>(1, std::ssize(batch.tokens));
    out.n_logits = std::ssize(batch.logit_tokens);
    if (out.n_sweep == 0 && out.n_step > 0 && out.n_logits == std::ssize(batch.tokens)) {
      return step_shape(out, limits_, model_.options.max_window);
    }
    out.n_tokens = padded(out.n_tokens, limits_.max_tokens);
    out.n_logits = padded(out.n_logits, limits_.max_logits);
    return out;
  }

  // Puts the pass where enqueue() fetches it. What the shape has room for beyond it is skipped
  // rows, and tokens of no row.
  void send(const PassShape& shape, const ForwardBatch& batch, std::span<const DrawRow> draws) {
    Carver host(down_.host()), pinned(down_.pinned());
    const PassArrays a(host, shape), sent(pinned, shape);
    const WindowArrays& w = a.windows;
    int64_t n_rows = 0;
    for (const Phase phase : {Phase::kStep, Phase::kSweep}) {
      for (const ForwardRow& r : batch.rows) {
        if (r.phase != phase || r.row.read_slot < 0) continue;
        w.set_row(n_rows, r.row);
        std::copy_n(r.pages, pages_of(r.row), sent.pages + n_rows * shape.n_pages);
        ++n_rows;
      }
    }
    for (; n_rows < shape.n_rows(); ++n_rows) w.set_row(n_rows, Row{});
    const int64_t n_tokens = std::ssize(batch.tokens), n_logits = std::ssize(batch.logit_tokens);
    std::copy(batch.tokens.begin(), batch.tokens.end(), w.tokens);
    std::fill(w.tokens + n_tokens, w.tokens + shape.n_tokens, 0);
    std::fill(w.positions + n_tokens, w.positions + shape.n_tokens, 0);
    std::copy(batch.logit_tokens.begin(), batch.logit_tokens.end(), a.logit_tokens);
    std::fill(a.logit_tokens + n_logits, a.logit_tokens + shape.n_logits, 0);
    for (int64_t i = 0; i < shape.n_logits; ++i) {
      const DrawRow draw = i < std::ssize(draws) ? draws[static_cast<size_t>(i)] : DrawRow{};
      a.draw_params[i] = draw.wanted ? draw.params : ops::SamplerParams{};
      a.draw_positions[i] = draw.position;
    }
    down_.send(reinterpret_cast<const char*>(a.pages) - down_.host());
  }

  ForwardLimits limits_;
  ModelCuda model_;
  Stream stream_;
  std::unique_ptr<DeviceArena> arena_;
  StatePoolCuda pools_;
  StateParts parts_;
  std::optional<Scratch> scratch_;
  Staged down_, up_;
  PinnedBuffer logits_;
  std::vector<ops::SampleResult> results_;
  std::unique_ptr<ops::cuda::CudaContext> context_;
  std::map<PassShape, Graph> graphs_;
  int64_t graph_bytes_ = 0;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(bool exact) : exact_(exact) { check_device(); }

  std::shared_ptr<const Model> load(const std::string& folder,
                                    const ModelOptions& options) const override {
    auto model = Model::outline(folder, options);
    check_model(*model);
    return model;
  }
  ModelMemory memory(const Model& model) const override {
    const ModelCuda planned = plan_of(model);
    ModelMemory out = memory_of(planned);
    int64_t& weights = weights_[model.folder()];
    if (weights == 0) {
      DeviceArena counter;
      const auto files = file_weights(planned.description, model.folder());
      take_weights(planned.description, counter, *files);
      weights = counter.used();
    }
    out.weights = weights;
    return out;
  }
  int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const override {
    const ModelCuda planned = plan_of(model);
    DeviceArena counter;
    Scratch(planned, limits, counter);
    // What the pools' arrays and the conv rows beside them are rounded up by.
    const int64_t arrays = std::ssize(planned.recurrent) * 6 + std::ssize(planned.attention) + 1;
    return counter.used() + arrays * DeviceArena::kAlignment + graph_bytes(planned, limits);
  }
  int64_t budget_bytes(int64_t) const override { return free_device_bytes() - kReserve; }
  std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                const ForwardLimits& limits) const override {
    return std::make_unique<CudaBackend>(model, sizes, limits, exact_);
  }

 private:
  bool exact_;
  mutable std::map<std::string, int64_t> weights_;  // bytes by folder: its headers are read once
};

}  // namespace

std::unique_ptr<Device> cuda_device(bool exact) { return std::make_unique<CudaDevice>(exact); }

}  // namespace replayssm
