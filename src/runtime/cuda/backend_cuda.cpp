#include "runtime/cuda/backend_cuda.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/error.h"
#include "model/cuda/forward_cuda.h"
#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/sample_cuda.h"
#include "replay/cuda/sequence_cuda.h"
#include "runtime/cuda/memory_kernels.h"

namespace replayssm {
namespace {

constexpr int64_t kReserve = int64_t{2} << 30;  // for the driver and its modules

// The arrays of a pass, in page-locked memory and on the device.
template <typename T>
class Mirror {
 public:
  Mirror(int64_t count, DeviceArena& arena)
      : host_(arena.counts_only() ? PinnedBuffer() : PinnedBuffer(count * int64_t{sizeof(T)})),
        device_(arena.take_as<T>("scratch", count)) {}

  T& operator[](int64_t i) { return reinterpret_cast<T*>(host_.data())[i]; }
  T* device() const { return device_; }
  void upload(int64_t count, const Stream& stream) const {
    if (count == 0) return;
    check_cuda(cudaMemcpyAsync(device_, host_.data(), static_cast<size_t>(count) * sizeof(T),
                               cudaMemcpyHostToDevice, stream.get()),
               "copy of a pass");
  }
  void download(int64_t count, const Stream& stream) const {
    check_cuda(cudaMemcpyAsync(host_.data(), device_, static_cast<size_t>(count) * sizeof(T),
                               cudaMemcpyDeviceToHost, stream.get()),
               "copy of a pass");
  }

 private:
  PinnedBuffer host_;
  T* device_;
};

struct PassArrays {
  PassArrays(const ForwardLimits& limits, DeviceArena& arena)
      : rows(limits.max_rows, arena),
        start(limits.max_rows, arena),
        first_token(limits.max_rows, arena),
        row_tokens(limits.max_rows, arena),
        tokens(limits.max_tokens, arena),
        positions(limits.max_tokens, arena),
        logit_tokens(limits.max_logits, arena),
        draw_params(limits.max_logits, arena),
        draw_positions(limits.max_logits, arena),
        drawn(limits.max_logits, arena),
        draw_status(limits.max_logits, arena),
        pages(limits.max_rows * ((limits.max_positions + ops::kKvPage - 1) / ops::kKvPage), arena) {
  }
  Mirror<Row> rows;
  Mirror<int64_t> start, first_token;
  Mirror<int32_t> row_tokens, tokens;
  Mirror<int64_t> positions, logit_tokens;
  Mirror<ops::SamplerParams> draw_params;
  Mirror<int64_t> draw_positions;
  Mirror<int32_t> drawn;
  Mirror<ops::SampleStatus> draw_status;
  Mirror<int32_t> pages;
};

// Rows of a product: few numbers of them, because each has its algorithms chosen once.
int64_t padded(int64_t rows, int64_t most) {
  const int64_t step = rows <= 8 ? 1 : rows <= 128 ? 8 : 64;
  return std::min((rows + step - 1) / step * step, most);
}

// A row that only folds has none.
int64_t pages_of(const Row& row) {
  if (row.n_tokens == 0) return 0;
  return (row.start + row.n_tokens + ops::kKvPage - 1) / ops::kKvPage;
}

// What the kernels have no choice in.
void check_model(const Model& model) {
  if (model.options().state != StateMode::kReplay) fail("--state plain runs on the CPU only");
  if (model.grid().interval != 16) fail("--grid: on CUDA it is 16");
  if (model.activation() != DType::kBF16) {
    fail("CUDA takes models stored in bf16; activations of this one are ",
         dtype_name(model.activation()));
  }
}

ModelCuda plan_of(const Model& model) {
  ModelCuda out = plan_model(describe_model(model.folder()),
                             {StateWay::kReplay, model.options().max_window, model.checkpoint()});
  for (const RecurrentLayerCuda& layer : out.recurrent) {
    if (layer.problem.ring != model.ring()) {
      fail("--ring-dtype: on CUDA it is ", dtype_name(layer.problem.ring), " for ",
           model.spec().model_type);
    }
  }
  return out;
}

// A pass's memory beside weights and pools.
struct Scratch {
  Scratch(const ModelCuda& model, const ForwardLimits& limits, DeviceArena& arena)
      : forward(model, ForwardCudaLimits{limits.max_tokens, limits.max_logits}, arena),
        workspace(arena.take("scratch", ops::cuda::CudaContext::kWorkspaceBytes)),
        arrays(limits, arena) {}

  ForwardCuda forward;
  void* workspace;
  PassArrays arrays;
};

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
    if (bytes > free) {
      fail("the model and ", sizes.ring_slots, " sequences need ", bytes >> 20,
           " MiB of the device, ", free >> 20, " MiB are free");
    }
    arena_ = std::make_unique<DeviceArena>(bytes);
    model_.weights = take_weights(model_.description, *arena_, *files);
    take_pools(*arena_, sizes);
    scratch_.emplace(model_, limits_, *arena_);
    results_.resize(static_cast<size_t>(limits.max_logits));
    logits_ = PinnedBuffer(limits.max_logits * model_.spec().vocab * int64_t{sizeof(float)});
    const auto mode = exact ? ops::cuda::Mode::kExact : ops::cuda::Mode::kFast;
    context_ = std::make_unique<ops::cuda::CudaContext>(stream_.get(), scratch_->workspace, mode);
    scratch_->forward.prepare(*context_);
  }

  PassResult run(const ForwardBatch& batch, std::span<const DrawRow> draws) override {
    const PassCuda pass = upload(batch);
    scratch_->forward.run(*context_, pass, pools_);
    const auto wanted = [&](int64_t row) {
      return !draws.empty() && draws[static_cast<size_t>(row)].wanted;
    };
    bool any = false;
    const int64_t row_bytes = model_.spec().vocab * int64_t{sizeof(float)};
    const int64_t n_logits = std::ssize(batch.logit_tokens);
    for (int64_t row = 0, first = 0; row < n_logits; first = ++row) {
      if (wanted(row)) {
        any = true;
        continue;
      }
      // Neighbours go together.
      while (row + 1 < n_logits && !wanted(row + 1)) ++row;
      move(logits_.data() + first * row_bytes,
           reinterpret_cast<const char*>(scratch_->forward.logits()) + first * row_bytes,
           (row + 1 - first) * row_bytes, cudaMemcpyDeviceToHost);
    }
    if (any) draw(draws);
    stream_.wait();
    for (size_t i = 0; any && i < draws.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      results_[i] = {scratch_->arrays.draw_status[row], scratch_->arrays.drawn[row]};
    }
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
    return out;
  }
  int64_t n_saturated() const override { return scratch_->forward.n_saturated(); }

 private:
  void move(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_.get()),
               "copy between host and device");
  }

  // Every row's token; those that nobody wants are drawn greedily.
  void draw(std::span<const DrawRow> draws) {
    PassArrays& a = scratch_->arrays;
    const auto n = static_cast<int64_t>(draws.size());
    for (int64_t i = 0; i < n; ++i) {
      const DrawRow& row = draws[static_cast<size_t>(i)];
      a.draw_params[i] = row.wanted ? row.params : ops::SamplerParams{};
      a.draw_positions[i] = row.position;
    }
    a.draw_params.upload(n, stream_);
    a.draw_positions.upload(n, stream_);
    const int64_t vocab = model_.spec().vocab;
    ops::cuda::sample(*context_, {scratch_->forward.logits(), DType::kF32, n, vocab, vocab},
                      {a.draw_params.device(), nullptr, a.draw_positions.device()},
                      a.drawn.device(), a.draw_status.device());
    a.drawn.download(n, stream_);
    a.draw_status.download(n, stream_);
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

  PassCuda upload(const ForwardBatch& batch) {
    PassCuda pass;
    PassArrays& a = scratch_->arrays;
    // A pass that only folds has a token of no row, too.
    const int64_t n_tokens = std::ssize(batch.tokens), n_logits = std::ssize(batch.logit_tokens);
    pass.n_tokens = padded(std::max<int64_t>(1, n_tokens), limits_.max_tokens);
    pass.n_logits = padded(n_logits, limits_.max_logits);
    for (int64_t i = n_tokens; i < pass.n_tokens; ++i) {
      a.tokens[i] = 0;
      a.positions[i] = 0;
    }
    for (int64_t i = n_logits; i < pass.n_logits; ++i) a.logit_tokens[i] = 0;
    pass.pages_stride = pass.longest = 1;  // where all rows only fold, too
    for (const ForwardRow& r : batch.rows) {
      if (r.row.read_slot >= 0) pass.pages_stride = std::max(pass.pages_stride, pages_of(r.row));
    }
    pass.single = true;
    int32_t n_rows = 0;
    for (const Phase phase : {Phase::kStep, Phase::kSweep}) {
      for (const ForwardRow& r : batch.rows) {
        if (r.phase != phase || r.row.read_slot < 0) continue;
        if (phase == Phase::kStep) {
          pass.single = pass.single && r.row.n_tokens <= 1 && r.row.start == r.row.n;
        }
        set_row(n_rows++, r, pass);
      }
      (phase == Phase::kStep ? pass.n_step : pass.n_sweep) = n_rows - pass.n_step;
    }
    pass.max_positions = pass.pages_stride * ops::kKvPage;
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      a.tokens[static_cast<int64_t>(i)] = batch.tokens[i];
    }
    for (int64_t i = 0; i < n_logits; ++i) {
      a.logit_tokens[i] = batch.logit_tokens[static_cast<size_t>(i)];
    }
    a.rows.upload(n_rows, stream_);
    a.start.upload(n_rows, stream_);
    a.first_token.upload(n_rows, stream_);
    a.row_tokens.upload(n_rows, stream_);
    a.tokens.upload(pass.n_tokens, stream_);
    a.positions.upload(pass.n_tokens, stream_);
    a.logit_tokens.upload(pass.n_logits, stream_);
    a.pages.upload(n_rows * pass.pages_stride, stream_);
    pass.rows = a.rows.device();
    pass.tokens = a.tokens.device();
    pass.positions = a.positions.device();
    pass.start = a.start.device();
    pass.row_tokens = a.row_tokens.device();
    pass.first_token = a.first_token.device();
    pass.pages = a.pages.device();
    pass.logit_tokens = a.logit_tokens.device();
    return pass;
  }

  void set_row(int32_t i, const ForwardRow& r, PassCuda& pass) {
    PassArrays& a = scratch_->arrays;
    a.rows[i] = r.row;
    a.start[i] = r.row.start;
    a.first_token[i] = r.row.token;
    a.row_tokens[i] = r.row.n_tokens;
    pass.longest = std::max(pass.longest, r.row.n_tokens);
    for (int32_t t = 0; t < r.row.n_tokens; ++t) a.positions[r.row.token + t] = r.row.start + t;
    for (int64_t p = 0; p < pages_of(r.row); ++p) a.pages[i * pass.pages_stride + p] = r.pages[p];
  }

  ForwardLimits limits_;
  ModelCuda model_;
  Stream stream_;
  std::unique_ptr<DeviceArena> arena_;
  StatePoolCuda pools_;
  StateParts parts_;
  std::optional<Scratch> scratch_;
  PinnedBuffer logits_;
  std::vector<ops::SampleResult> results_;
  std::unique_ptr<ops::cuda::CudaContext> context_;
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
    DeviceArena counter;
    take_weights(planned.description, counter, *file_weights(planned.description, model.folder()));
    out.weights = counter.used();
    return out;
  }
  int64_t scratch_bytes(const Model& model, const ForwardLimits& limits) const override {
    const ModelCuda planned = plan_of(model);
    DeviceArena counter;
    Scratch(planned, limits, counter);
    // What the pools' arrays and the conv rows beside them are rounded up by.
    const int64_t arrays = std::ssize(planned.recurrent) * 6 + std::ssize(planned.attention) + 1;
    return counter.used() + arrays * DeviceArena::kAlignment;
  }
  int64_t budget_bytes(int64_t) const override { return free_device_bytes() - kReserve; }
  std::unique_ptr<Backend> make(const Model& model, const PoolSizes& sizes,
                                const ForwardLimits& limits) const override {
    return std::make_unique<CudaBackend>(model, sizes, limits, exact_);
  }

 private:
  bool exact_;
};

}  // namespace

std::unique_ptr<Device> cuda_device(bool exact) { return std::make_unique<CudaDevice>(exact); }

}  // namespace replayssm
