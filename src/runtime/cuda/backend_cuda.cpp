#include "runtime/cuda/backend_cuda.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/cuda/ops_cuda.h"
#include "model/cuda/weights_cuda.h"
#include "model/forward_pass.h"
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

// Rows of a product: few numbers of them, because each has its algorithms chosen once.
int64_t padded(int64_t rows, int64_t most) {
  const int64_t step = rows <= 8 ? 1 : rows <= 128 ? 8 : 64;
  return std::min((rows + step - 1) / step * step, most);
}

// A row that only folds has none.
int64_t pages_of(const Row& row) {
  return row.n_tokens == 0 ? 0 : ops::pages_for(row.start + row.n_tokens);
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
  Scratch(const Model& model, const CudaLayers& layers, const ForwardLimits& limits, Arena& arena)
      : engine(model, layers, arena),
        forward(model, limits, arena),
        workspace(arena.take("scratch", ops::cuda::CudaContext::kWorkspaceBytes)),
        down(arena.take_as<char>("scratch", bytes_of<PassArrays>(largest_shape(limits)))),
        up(arena.take_as<char>("scratch", bytes_of<OutcomeArrays>(largest_shape(limits)))) {}

  EngineCuda engine;
  ForwardScratch forward;
  void* workspace;
  char *down, *up;
};

// The driver's, for the graphs of a model.
int64_t graph_bytes(const Model& model, const ForwardLimits& limits) {
  size_t n_mixers = 0;
  for (const LayerSpec& layer : model.spec().layers) n_mixers += layer.mixers.size();
  const auto launches = static_cast<int64_t>(n_mixers) * kMixerLaunches + kOtherLaunches;
  const auto graphs = std::ssize(step_shapes(limits, model.options().max_window));
  return graphs * launches * kLaunchBytes;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Model& model, const PoolSizes& sizes, const ForwardLimits& limits,
              const CudaDeviceOptions& options)
      : model_(model), limits_(limits), layers_(plan_layers_cuda(model)) {
    const auto source = options.weights(model);
    CountingArena counter(DeviceArena::kAlignment);
    take_pool(layers_.sizes, sizes, counter);
    Scratch(model, layers_, limits_, counter);
    take_weights_cuda(model.description(), counter, *source);
    const int64_t bytes = counter.used(), free = free_device_bytes();
    graph_bytes_ = graph_bytes(model, limits_);
    if (bytes + graph_bytes_ > free) {
      fail("the model and ", sizes.ring_slots, " sequences need ", (bytes + graph_bytes_) >> 20,
           " MiB of the device, ", free >> 20, " MiB are free");
    }
    arena_ = std::make_unique<DeviceArena>(bytes);
    weights_ = take_weights_cuda(model.description(), *arena_, *source);
    pool_ = take_pool(layers_.sizes, sizes, *arena_);
    scratch_.emplace(model, layers_, limits_, *arena_);
    const PassShape largest = largest_shape(limits_);
    fold_.down = Staged(bytes_of<PassArrays>(largest));
    for (Flight& flight : flights_) {
      flight.down = Staged(bytes_of<PassArrays>(largest));
      flight.up = Staged(bytes_of<OutcomeArrays>(largest));
      flight.drawn.resize(static_cast<size_t>(limits.max_logits));
      flight.accepted.resize(static_cast<size_t>(limits.max_rows));
    }
    logits_ = PinnedBuffer(limits.max_logits * model.spec().vocab * int64_t{sizeof(float)});
    const auto mode = options.exact ? ops::cuda::Mode::kExact : ops::cuda::Mode::kFast;
    context_ = std::make_unique<ops::cuda::CudaContext>(stream_.get(), scratch_->workspace, mode);
    scratch_->engine.prepare(*context_);
    for (const PassShape& shape : step_shapes(limits_, model.options().max_window)) capture(shape);
  }
  // What is under way ends before its memory goes.
  ~CudaBackend() override { cudaStreamSynchronize(stream_.get()); }

  void launch(const ForwardBatch& batch, std::span<const DrawRow> draws) override {
    REPLAYSSM_CHECK(n_launched_ < n_waited_ + 2, "a third pass at once");
    const auto wanted = [&](int64_t row) {
      return !draws.empty() && draws[static_cast<size_t>(row)].wanted;
    };
    const PassShape shape = shape_of(batch);
    Flight& flight = flights_[n_launched_ % 2];
    flight.shape = shape;
    flight.n_draws = std::ssize(draws);
    flight.any = std::ranges::any_of(draws, [](const DrawRow& row) { return row.wanted; });
    send(flight, batch, draws);
    const auto graph = graphs_.find(shape);
    if (graph != graphs_.end()) {
      graph->second.launch(stream_);
    } else {
      enqueue(shape, flight.any);
    }
    if (flight.any) {
      move(flight.up.pinned(), scratch_->up, bytes_of<OutcomeArrays>(shape),
           cudaMemcpyDeviceToHost);
    }
    const int64_t row_bytes = model_.spec().vocab * int64_t{sizeof(float)};
    const int64_t n_logits = std::ssize(batch.logit_tokens);
    for (int64_t row = 0, first = 0; row < n_logits; first = ++row) {
      if (wanted(row)) continue;
      // Neighbours go together.
      while (row + 1 < n_logits && !wanted(row + 1)) ++row;
      move(logits_.data() + first * row_bytes,
           reinterpret_cast<const char*>(scratch_->forward.logits) + first * row_bytes,
           (row + 1 - first) * row_bytes, cudaMemcpyDeviceToHost);
    }
    flight.end.record(stream_);
    ++n_launched_;
    if (flight.any) drawn_places_ = flight.places;
  }

  PassResult wait() override {
    REPLAYSSM_CHECK(n_waited_ < n_launched_, "no pass is under way");
    Flight& flight = flights_[n_waited_++ % 2];
    flight.end.wait();
    const auto* logits = reinterpret_cast<const float*>(logits_.data());
    if (!flight.any) return {logits};
    flight.up.receive(bytes_of<OutcomeArrays>(flight.shape));
    Carver carver(flight.up.host());
    const OutcomeArrays outcome(carver, flight.shape);
    for (int64_t i = 0; i < flight.n_draws; ++i) {
      flight.drawn[static_cast<size_t>(i)] = {outcome.status[i], outcome.tokens[i]};
    }
    for (size_t i = 0; i < flight.places.size(); ++i) {
      flight.accepted[i] = flight.places[i] < 0 ? 0 : outcome.n_accepted[flight.places[i]];
    }
    return {logits, flight.drawn.data(), flight.accepted.data()};
  }
  bool overlaps() const override { return true; }
  void fold(const Row& row) override {
    const ForwardRow only{row, Phase::kStep, nullptr};
    const ForwardBatch batch{{&only, 1}, {}, {}};
    fold_.shape = shape_of(batch);
    send(fold_, batch, {});
    enqueue(fold_.shape, /*draw=*/false);
    stream_.wait();
  }
  bool draws() const override { return true; }

  const StateParts& parts() const override { return pool_.parts; }
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
    const Problem& problem = layers_.recurrent[layer].plan->problem();
    const StateParts::Layer& parts = pool_.parts.layers[layer];
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
    const ops::cuda::KvShapeCuda& shape = layers_.kv[layer];
    const MemorySpan from = pool_.parts.kv[layer].at(page);
    std::vector<std::byte> bytes(static_cast<size_t>(from.bytes));
    read({&from, 1}, bytes.data());
    return ops::cuda::page_values(shape, bytes);
  }
  MemorySpan embedding() const override {
    const ops::ConstMatrix& table = weights_.embedding;
    // Only read() takes it.
    return {const_cast<std::byte*>(static_cast<const std::byte*>(table.data)),
            table.rows * table.cols * dtype_bytes(table.dtype)};
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
  int64_t n_saturated() const override { return scratch_->engine.n_saturated(); }

 private:
  void move(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_.get()),
               "copy between host and device");
  }

  // The pass, and every row's token (those that nobody wants are drawn greedily).
  void enqueue(const PassShape& shape, bool draw) {
    Carver down(scratch_->down), up(scratch_->up);
    const PassArrays arrays(down, shape);
    const OutcomeArrays outcome(up, shape);
    cuda::resolve_tokens(arrays.tokens, shape.n_tokens, outcome.next, stream_.get());
    const PassCuda pass = pass_of(shape, arrays);
    OpsCuda ops(scratch_->engine, *context_, pass, pool_);
    run_forward(ops, model_.spec(), weights_, scratch_->forward);
    if (!draw) return;
    const int64_t vocab = model_.spec().vocab;
    ops::cuda::sample(
        *context_, {scratch_->forward.logits, DType::kF32, shape.n_logits, vocab, vocab},
        {arrays.draw_params, nullptr, arrays.draw_positions}, outcome.tokens, outcome.status);
    ops::cuda::verify(*context_,
                      {arrays.row_logits, arrays.first_logit, arrays.logit_tokens, shape.n_rows()},
                      arrays.tokens, outcome.tokens, outcome.n_accepted, outcome.next);
  }

  // The graph of a shape, after a pass of it in which products choose their algorithms.
  void capture(const PassShape& shape) {
    flights_[0].shape = shape;
    send(flights_[0], {}, {});
    enqueue(shape, true);
    stream_.wait();
    graphs_[shape] = Graph::capture(stream_, [&] { enqueue(shape, true); });
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
      return step_shape(out, limits_, model_.options().max_window);
    }
    out.n_tokens = padded(out.n_tokens, limits_.max_tokens);
    out.n_logits = padded(out.n_logits, limits_.max_logits);
    return out;
  }

  // A pass from its launch to the end of wait().
  struct Flight {
    PassShape shape;
    Staged down, up;
    Event end;
    int64_t n_draws = 0;
    bool any = false;             // rows are drawn
    std::vector<int32_t> places;  // of the batch's rows among the device's; -1: left out
    std::vector<ops::SampleResult> drawn;
    std::vector<int32_t> accepted;
  };

  // Copies the pass to where enqueue() fetches it. What the shape has room for beyond it is skipped
  // rows, and tokens of no row.
  void send(Flight& flight, const ForwardBatch& batch, std::span<const DrawRow> draws) {
    const PassShape& shape = flight.shape;
    Carver host(flight.down.host()), pinned(flight.down.pinned());
    const PassArrays a(host, shape), sent(pinned, shape);
    flight.places.assign(batch.rows.size(), -1);
    int32_t n_rows = 0;
    for (const Phase phase : {Phase::kStep, Phase::kSweep}) {
      for (size_t i = 0; i < batch.rows.size(); ++i) {
        const ForwardRow& r = batch.rows[i];
        if (r.phase != phase || r.row.read_slot < 0) continue;
        a.set_row(n_rows, r.row);
        std::copy_n(r.pages, pages_of(r.row), sent.pages + n_rows * shape.n_pages);
        flight.places[i] = n_rows++;
      }
    }
    for (int32_t i = n_rows; i < shape.n_rows(); ++i) a.set_row(i, Row{});
    const int64_t n_tokens = std::ssize(batch.tokens), n_logits = std::ssize(batch.logit_tokens);
    for (int64_t i = 0; i < shape.n_tokens; ++i) {
      const int32_t id = i < n_tokens ? batch.tokens[static_cast<size_t>(i)] : 0;
      a.tokens[i] = id >= 0 ? id : drawn_token(drawn_places_[static_cast<size_t>(-1 - id)]);
    }
    std::fill(a.positions + n_tokens, a.positions + shape.n_tokens, 0);
    std::ranges::copy(batch.logit_tokens, a.logit_tokens);
    std::fill(a.logit_tokens + n_logits, a.logit_tokens + shape.n_logits, 0);
    set_row_logits(flight, batch, a);
    for (int64_t i = 0; i < shape.n_logits; ++i) {
      const DrawRow draw = i < std::ssize(draws) ? draws[static_cast<size_t>(i)] : DrawRow{};
      a.draw_params[i] = draw.wanted ? draw.params : ops::SamplerParams{};
      a.draw_positions[i] = draw.position;
    }
    flight.down.send(reinterpret_cast<const char*>(a.pages) - flight.down.host());
    move(scratch_->down, flight.down.pinned(), bytes_of<PassArrays>(shape), cudaMemcpyHostToDevice);
  }

  // Which rows of logits are of which row of the batch: both go through the tokens in order.
  static void set_row_logits(const Flight& flight, const ForwardBatch& batch, const PassArrays& a) {
    size_t logit = 0;
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const Row& row = batch.rows[i].row;
      const auto first = static_cast<int64_t>(logit);
      while (logit < batch.logit_tokens.size() &&
             batch.logit_tokens[logit] < row.token + row.n_tokens) {
        ++logit;
      }
      if (flight.places[i] < 0) continue;
      a.first_logit[flight.places[i]] = first;
      a.row_logits[flight.places[i]] = static_cast<int32_t>(static_cast<int64_t>(logit) - first);
    }
  }

  const Model& model_;
  ForwardLimits limits_;
  CudaLayers layers_;
  Stream stream_;
  std::unique_ptr<DeviceArena> arena_;
  CudaWeights weights_;
  StatePool pool_;
  std::optional<Scratch> scratch_;
  Flight flights_[2];
  Flight fold_;                        // of fold(), its down block alone
  std::vector<int32_t> drawn_places_;  // of the last pass with draws
  uint64_t n_launched_ = 0, n_waited_ = 0;
  PinnedBuffer logits_;
  std::unique_ptr<ops::cuda::CudaContext> context_;
  std::map<PassShape, Graph> graphs_;
  int64_t graph_bytes_ = 0;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(CudaDeviceOptions options) : options_(std::move(options)) { check_device(); }

  ModelMemory memory(const Model& model) const override {
    ModelMemory out = memory_of(plan_layers_cuda(model).sizes);
    int64_t& weights = weights_[model.path()];
    if (weights == 0 || model.path().empty()) {
      CountingArena counter(DeviceArena::kAlignment);
      take_weights_cuda(model.description(), counter, *options_.weights(model));
      weights = counter.used();
    }
    out.weights = weights;
    return out;
  }
  int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const override {
    const CudaLayers layers = plan_layers_cuda(model);
    CountingArena counter(DeviceArena::kAlignment);
    Scratch(model, layers, limits, counter);
    // What the pools' arrays and the conv rows beside them are rounded up by.
    const int64_t arrays = std::ssize(layers.recurrent) * 6 + std::ssize(layers.kv) + 1;
    return counter.used() + arrays * DeviceArena::kAlignment + graph_bytes(model, limits);
  }
  int64_t budget_bytes(int64_t) const override { return free_device_bytes() - kReserve; }
  std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                const ForwardLimits& limits) const override {
    return std::make_unique<CudaBackend>(model, sizes, limits, options_);
  }

 private:
  CudaDeviceOptions options_;
  mutable std::map<std::string, int64_t> weights_;  // bytes by path: its headers are read once
};

}  // namespace

std::unique_ptr<Device> cuda_device(const CudaDeviceOptions& options) {
  return std::make_unique<CudaDevice>(options);
}

}  // namespace replayssm
