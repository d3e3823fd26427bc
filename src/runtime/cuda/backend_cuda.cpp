#include "runtime/cuda/backend_cuda.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/error.h"
#include "model/cuda/forward_cuda.h"

namespace replayssm {
namespace {

// The arrays of a pass, in page-locked memory and on the device.
template <typename T>
class Mirror {
 public:
  Mirror(int64_t count, DeviceArena& arena)
      : host_(arena.counts_only() ? PinnedBuffer() : PinnedBuffer(count * int64_t{sizeof(T)})),
        device_(arena.take_as<T>("scratch", count)) {}

  T& operator[](int64_t i) { return reinterpret_cast<T*>(host_.data())[i]; }
  const T* device() const { return device_; }
  void upload(int64_t count, const Stream& stream) const {
    if (count == 0) return;
    check_cuda(cudaMemcpyAsync(device_, host_.data(), static_cast<size_t>(count) * sizeof(T),
                               cudaMemcpyHostToDevice, stream.get()),
               "copy of a pass");
  }

 private:
  PinnedBuffer host_;
  T* device_;
};

struct PassArrays {
  PassArrays(const ForwardLimits& limits, int64_t n_pages, DeviceArena& arena)
      : rows(limits.max_rows, arena),
        start(limits.max_rows, arena),
        first_token(limits.max_rows, arena),
        row_tokens(limits.max_rows, arena),
        tokens(limits.max_tokens, arena),
        positions(limits.max_tokens, arena),
        logit_tokens(limits.max_logits, arena),
        pages(limits.max_rows * n_pages, arena) {}
  Mirror<Row> rows;
  Mirror<int64_t> start, first_token;
  Mirror<int32_t> row_tokens, tokens;
  Mirror<int64_t> positions, logit_tokens;
  Mirror<int32_t> pages;
};

int64_t pages_of(const Row& row) {
  return (row.start + row.n_tokens + ops::kKvPage - 1) / ops::kKvPage;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Model& model, const std::string& folder, const PoolSizes& sizes,
              const ForwardLimits& limits, bool exact)
      : limits_(limits), sizes_(sizes) {
    check_device();
    check_model(model);
    model_ = plan_model(describe_model(folder),
                        {StateWay::kReplay, model.options().max_window, model.checkpoint()});
    DeviceArena counter;
    const auto source = file_weights(model_.description, folder);
    take_weights(model_.description, counter, *source);
    build(counter);
    const int64_t free = free_device_bytes();
    if (counter.used() > free) {
      fail("the model and ", sizes.ring_slots, " sequences need ", counter.used() >> 20,
           " MiB of the device, ", free >> 20, " MiB are free");
    }
    arena_ = std::make_unique<DeviceArena>(counter.used());
    model_.weights = take_weights(model_.description, *arena_, *source);
    build(*arena_);
    const auto mode = exact ? ops::cuda::Mode::kExact : ops::cuda::Mode::kFast;
    context_ = std::make_unique<ops::cuda::CudaContext>(stream_.get(), workspace_, mode);
    forward_->prepare(*context_);
  }

  void run(const ForwardBatch& batch, float* logits) override {
    const PassCuda pass = upload(batch);
    forward_->run(*context_, pass, pools_);
    const auto bytes = static_cast<size_t>(pass.n_logits * model_.spec().vocab) * sizeof(float);
    check_cuda(
        cudaMemcpyAsync(logits, forward_->logits(), bytes, cudaMemcpyDeviceToHost, stream_.get()),
        "copy of logits");
    stream_.wait();
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
  int64_t n_saturated() const override { return forward_->n_saturated(); }

 private:
  // What the kernels have no choice in.
  static void check_model(const Model& model) {
    if (model.options().state != StateMode::kReplay) {
      fail("--state plain runs on the CPU only");
    }
    if (model.grid().interval != 16) fail("--grid: on CUDA it is 16");
    if (model.activation() != DType::kBF16) {
      fail("CUDA takes models stored in bf16; activations of this one are ",
           dtype_name(model.activation()));
    }
  }

  void build(DeviceArena& arena) {
    PoolSizesCuda sizes;
    sizes.state_slots = sizes_.checkpoint_slots;
    sizes.ring_slots = sizes_.ring_slots;
    sizes.kv_pages = sizes_.kv_pages;
    pools_ = take_pools(model_, sizes, arena);
    forward_.emplace(model_, ForwardCudaLimits{limits_.max_tokens, limits_.max_logits}, arena);
    workspace_ = arena.take("scratch", ops::cuda::CudaContext::kWorkspaceBytes);
    arrays_.emplace(limits_, sizes_.kv_pages, arena);
  }

  PassCuda upload(const ForwardBatch& batch) {
    PassCuda pass;
    PassArrays& a = *arrays_;
    // A pass that only folds has a token of no row.
    a.tokens[0] = 0;
    a.positions[0] = 0;
    pass.n_tokens = std::max<int64_t>(1, std::ssize(batch.tokens));
    pass.n_logits = std::ssize(batch.logit_tokens);
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
    pass.max_positions = std::max<int64_t>(1, pass.pages_stride) * ops::kKvPage;
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      a.tokens[static_cast<int64_t>(i)] = batch.tokens[i];
    }
    for (int64_t i = 0; i < pass.n_logits; ++i) {
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
    PassArrays& a = *arrays_;
    a.rows[i] = r.row;
    a.start[i] = r.row.start;
    a.first_token[i] = r.row.token;
    a.row_tokens[i] = r.row.n_tokens;
    pass.longest = std::max(pass.longest, r.row.n_tokens);
    for (int32_t t = 0; t < r.row.n_tokens; ++t) a.positions[r.row.token + t] = r.row.start + t;
    for (int64_t p = 0; p < pages_of(r.row); ++p) a.pages[i * pass.pages_stride + p] = r.pages[p];
  }

  ForwardLimits limits_;
  PoolSizes sizes_;
  ModelCuda model_;
  Stream stream_;
  std::unique_ptr<DeviceArena> arena_;
  StatePoolCuda pools_;
  std::optional<ForwardCuda> forward_;
  void* workspace_ = nullptr;
  std::optional<PassArrays> arrays_;
  std::unique_ptr<ops::cuda::CudaContext> context_;
};

}  // namespace

BackendFactory cuda_backend(const std::string& folder, bool exact) {
  return [folder, exact](const Model& model, const PoolSizes& sizes, const ForwardLimits& limits) {
    return std::make_unique<CudaBackend>(model, folder, sizes, limits, exact);
  };
}

}  // namespace replayssm
