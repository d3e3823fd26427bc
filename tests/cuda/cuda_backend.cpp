#include "cuda_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "../capi/capi_args.h"
#include "cuda_cases.h"
#include "device.h"
#include "poison.h"
#include "replay/cuda/step_instances.h"

namespace replayssm::test {
namespace {

// One call's memory on the device: copies of the host's arrays, no better aligned than promised,
// with guards between them. What comes back is checked: guards and inputs must be as they were.
class Staging {
 public:
  Staging() {
    cuda_check(cudaMallocHost(reinterpret_cast<void**>(&host_), kCapacity), "cudaMallocHost");
    cuda_check(cudaMalloc(reinterpret_cast<void**>(&device_), kCapacity), "cudaMalloc");
  }
  ~Staging() {
    cudaFreeHost(host_);
    cudaFree(device_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Empty, for the next call.
  Staging& begin() {
    used_ = 0;
    pieces_.clear();
    return *this;
  }
  // Where a copy of data will be; null stays null.
  const void* in(const void* data, int64_t bytes) { return add(data, nullptr, bytes); }
  void* inout(void* data, int64_t bytes) { return add(data, data, bytes); }

  template <typename Call>
  rssm_status run(const Call& call) {
    cuda_check(cudaMemcpy(device_, host_, used_, cudaMemcpyHostToDevice), "upload");
    poison_shared_memory();
    const rssm_status status = call();
    cuda_check(cudaDeviceSynchronize(), "the call");
    cuda_check(cudaMemcpy(host_, device_, used_, cudaMemcpyDeviceToHost), "download");
    int64_t clean_from = 0;
    for (const Piece& p : pieces_) {
      expect_guard(clean_from, p.at);
      if (p.back != nullptr) {
        std::memcpy(p.back, host_ + p.at, p.bytes);
      } else {
        EXPECT_EQ(0, std::memcmp(p.data, host_ + p.at, p.bytes)) << "an input was written";
      }
      clean_from = p.at + p.bytes;
    }
    expect_guard(clean_from, used_);
    return status;
  }

 private:
  static constexpr int64_t kCapacity = int64_t{512} << 20;
  struct Piece {
    const void* data;
    void* back;
    int64_t at, bytes;
  };

  void* add(const void* data, void* back, int64_t bytes) {
    if (data == nullptr) return nullptr;
    const int64_t at = (used_ + 255) / 256 * 256 + 16, end = at + bytes + 64;
    if (end > kCapacity) {
      ADD_FAILURE() << "more than the staging holds";
      std::abort();
    }
    std::memset(host_ + used_, 0xff, end - used_);
    std::memcpy(host_ + at, data, bytes);
    pieces_.push_back({data, back, at, bytes});
    used_ = end;
    return device_ + at;
  }
  void expect_guard(int64_t from, int64_t to) const {
    EXPECT_TRUE(std::all_of(host_ + from, host_ + to, [](uint8_t b) { return b == 0xff; }))
        << "written outside a tensor";
  }

  uint8_t *host_ = nullptr, *device_ = nullptr;
  int64_t used_ = 0;
  std::vector<Piece> pieces_;
};

Staging& staging() {
  static Staging instance;
  return instance.begin();
}

template <typename T>
const T* in(Staging& s, const T* data, int64_t count) {
  return static_cast<const T*>(s.in(data, count * static_cast<int64_t>(sizeof(T))));
}

class CudaBackendPlan final : public BackendPlan {
 public:
  CudaBackendPlan(const Problem& problem, CPlan plan)
      : p_(problem),
        plan_(std::move(plan)),
        sizes_(sizes_of(plan_)),
        n_skipped_(rows_for_another_kernel(problem)) {}
  int64_t checkpoint_elements() const override { return sizes_.checkpoint_elements; }
  int64_t scale_elements() const override { return sizes_.scale_elements; }

  void run(StepArgs a, const Extents& extents, bool sweep, ThreadPool&) const override {
    Staging& s = staging();
    const bool fold =
        std::all_of(a.rows, a.rows + a.n_rows, [](const Row& r) { return r.n_tokens == 0; });
    const bool single = std::all_of(a.rows, a.rows + a.n_rows, [](const Row& r) {
      return r.read_slot < 0 || (r.n_tokens <= 1 && r.start == r.n);
    });
    const int64_t n = extents.n_tokens, act = dtype_bytes(p_.activation);
    const int64_t ring = dtype_bytes(p_.ring);
    // Every second step between rows that are skipped, so many that the problem's other kernel, if
    // it has one, takes it.
    std::vector<Row> among(a.rows, a.rows + a.n_rows);
    if (!sweep && n_calls_++ % 2 == 1) {
      among.insert(among.begin(), n_skipped_ / 2, Row{});
      among.insert(among.end(), n_skipped_ - n_skipped_ / 2, Row{});
    }
    a.n_rows = static_cast<int32_t>(among.size());
    a.rows = in(s, among.data(), a.n_rows);
    a.query.data = s.in(a.query.data, n * a.query.token_stride * act);
    a.key.data = s.in(a.key.data, n * a.key.token_stride * act);
    a.value.data = s.in(a.value.data, n * a.value.token_stride * act);
    a.gate.data = s.in(a.gate.data, n * a.gate.token_stride * 4);
    a.beta.data = s.in(a.beta.data, n * a.beta.token_stride * 4);
    a.out.data = s.inout(a.out.data, n * a.out.token_stride * act);
    a.a_log = in(s, a.a_log, p_.n_heads);
    a.dt_bias = in(s, a.dt_bias, sizes_.ring_gate_elements);
    a.skip = in(s, a.skip, p_.n_heads);
    a.checkpoint = s.inout(a.checkpoint,
                           extents.n_slots * a.checkpoint_slot_stride * dtype_bytes(p_.checkpoint));
    a.scale = static_cast<float*>(s.inout(a.scale, extents.n_slots * a.scale_slot_stride * 4));
    for (auto [r, element] :
         {std::pair(&a.ring_value, ring), {&a.ring_key, ring}, {&a.ring_gate, int64_t{4}}}) {
      r->data = s.inout(r->data, extents.n_ring_slots * r->slot_stride * element);
    }
    a.n_saturated = static_cast<int64_t*>(s.inout(a.n_saturated, 8));
    rssm_step_args args = to_c(a, extents);
    args.hints = single ? RSSM_HINT_SINGLE : 0;
    const auto function = sweep ? rssm_sweep : fold ? rssm_fold : rssm_step;
    EXPECT_EQ(s.run([&] { return function(plan_.get(), &args, nullptr); }), RSSM_OK)
        << rssm_last_error();
  }

  void export_checkpoint(const void* slot, const float* scale, float* canonical) const override {
    Staging& s = staging();
    const void* device_slot = s.in(slot, slot_bytes());
    const float* device_scale = in(s, scale, sizes_.scale_elements);
    void* out = s.inout(canonical, sizes_.canonical_elements * 4);
    const rssm_status status = s.run([&] {
      return rssm_export_checkpoint(plan_.get(), device_slot, device_scale,
                                    static_cast<float*>(out), nullptr);
    });
    EXPECT_EQ(status, RSSM_OK) << rssm_last_error();
  }
  void import_checkpoint(const float* canonical, void* slot, float* scale) const override {
    Staging& s = staging();
    const float* from = in(s, canonical, sizes_.canonical_elements);
    void* device_slot = s.inout(slot, slot_bytes());
    void* device_scale = s.inout(scale, sizes_.scale_elements * 4);
    const rssm_status status = s.run([&] {
      return rssm_import_checkpoint(plan_.get(), from, device_slot,
                                    static_cast<float*>(device_scale), nullptr);
    });
    EXPECT_EQ(status, RSSM_OK) << rssm_last_error();
  }

 private:
  int64_t slot_bytes() const { return sizes_.checkpoint_elements * dtype_bytes(p_.checkpoint); }

  // Rows for more blocks than SMs (no small-grid variant), or for more than plan_cuda's
  // kPersistentBlocks per SM (the persistent kernel).
  static size_t rows_for_another_kernel(const Problem& p) {
    constexpr int kBlocks = 140, kPersistentBlocks = 12 * kBlocks;
    if (p.activation == DType::kF32) return 0;  // the general kernel
    const auto [single, any] = cuda::kernels_of(p);
    int state_rows = 0;
    for (const cuda::StepKernels& x : {single, any}) {
      const int blocks = x.standard->persistent != nullptr ? kPersistentBlocks
                         : x.small_grid != nullptr         ? kBlocks
                                                           : 0;
      state_rows = std::max(state_rows, blocks * x.standard->rows);
    }
    return static_cast<size_t>(state_rows / (p.n_heads * p.value_dim));
  }

  Problem p_;
  CPlan plan_;
  rssm_sizes sizes_;
  size_t n_skipped_;
  mutable int n_calls_ = 0;
};

class CudaBackendConv final : public BackendConv {
 public:
  CudaBackendConv(const ConvProblem& problem, CConvPlan plan)
      : p_(problem), plan_(std::move(plan)) {}
  void run(const ConvArgs& from, const Extents& extents, ThreadPool&) const override {
    Staging& s = staging();
    ConvArgs a = from;
    const int64_t element = dtype_bytes(p_.activation);
    a.rows = in(s, a.rows, a.n_rows);
    a.in.data = s.in(a.in.data, extents.n_tokens * a.in.token_stride * element);
    a.out.data = s.inout(a.out.data, extents.n_tokens * a.out.token_stride * element);
    a.weight = in(s, a.weight, int64_t{p_.width} * p_.n_channels);
    a.bias = in(s, a.bias, p_.n_channels);
    a.ring.data = s.inout(a.ring.data, extents.n_ring_slots * a.ring.slot_stride * element);
    const rssm_conv_args args = to_c(a, extents);
    EXPECT_EQ(s.run([&] { return rssm_conv(plan_.get(), &args, nullptr); }), RSSM_OK)
        << rssm_last_error();
  }

 private:
  ConvProblem p_;
  CConvPlan plan_;
};

class CudaBackend final : public Backend {
 public:
  std::string name() const override { return "cuda"; }
  PlanResult<BackendPlan> plan(const Problem& problem) const override {
    std::string reason;
    CPlan plan = c_plan(problem, RSSM_CUDA, &reason);
    if (plan == nullptr) return {nullptr, reason};
    return {std::make_shared<CudaBackendPlan>(problem, std::move(plan)), ""};
  }
  PlanResult<BackendConv> plan(const ConvProblem& problem) const override {
    std::string reason;
    CConvPlan plan = c_plan(problem, RSSM_CUDA, &reason);
    if (plan == nullptr) return {nullptr, reason};
    return {std::make_shared<CudaBackendConv>(problem, std::move(plan)), ""};
  }
  int64_t stride_multiple() const override { return 16; }  // 16 bytes of int8
  bool rounds_scores() const override { return true; }
  Problem fit(const Problem& problem) const override { return cuda_fit(problem); }
  ConvProblem fit(const ConvProblem& problem) const override { return cuda_fit(problem); }
  std::vector<Case> shapes() const override { return with_plan(cuda_shapes()); }
  std::vector<Case> dtypes() const override { return with_plan(cuda_dtypes()); }
  std::vector<Case> core() const override { return with_plan(cuda_core()); }
};

}  // namespace

const Backend& cuda_backend() {
  static const CudaBackend backend;
  return backend;
}

const std::vector<const Backend*>& backends() {
  static const std::vector<const Backend*> all = {&cuda_backend()};
  return all;
}

}  // namespace replayssm::test
