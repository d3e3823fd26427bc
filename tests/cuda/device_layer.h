// A layer whose pools stay on the device, for batches too large for the suite's copies: random
// valid checkpoints, rings and inputs, sequences at every phase of the grid, sparse slots in random
// order, some rows skipped, some with a fold pending, some with pending rows, T from 0 to T_max.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "../replay/cases.h"
#include "compare_bytes.h"
#include "device.h"
#include "replay/convert.h"
#include "replay/cuda/kernels_cuda.h"

namespace replayssm::test {

class DeviceLayer {
 public:
  static constexpr size_t kAllRows = ~size_t{0};

  DeviceLayer(const Problem& problem, int n_rows, uint64_t seed)
      : p_(problem),
        plan_(plan_cuda(problem).plan),
        rng_(seed),
        n_slots_(3 * n_rows),
        keys_(int64_t{p_.n_key_heads} * p_.key_dim),
        values_(int64_t{p_.n_heads} * p_.value_dim),
        gates_(p_.family == Family::kKda ? p_.n_heads * p_.key_dim : p_.n_heads) {
    make_rows(n_rows);
    pool(checkpoint_, plan_->checkpoint_elements() * dtype_bytes(p_.checkpoint), p_.checkpoint);
    pool(scale_, plan_->scale_elements() * 4, DType::kF32);
    pool(ring_key_, p_.grid.ring_rows * keys_ * dtype_bytes(p_.ring), p_.ring);
    pool(ring_value_, p_.grid.ring_rows * values_ * dtype_bytes(p_.ring), p_.ring);
    pool(ring_gate_, p_.grid.ring_rows * gates_ * 4, DType::kF32, /*decay=*/true);
    query_ = random(n_tokens_ * keys_, p_.activation);
    key_ = random(n_tokens_ * keys_, p_.activation);
    value_ = random(n_tokens_ * values_, p_.activation);
    gate_ = random(n_tokens_ * gates_, DType::kF32);
    beta_ = random(n_tokens_ * p_.n_heads, DType::kF32);
    a_log_ = random(p_.n_heads, DType::kF32);
    dt_bias_ = random(gates_, DType::kF32);
    skip_ = random(p_.n_heads, DType::kF32);
    out_.now = std::make_unique<DeviceBuffer>(n_tokens_ * values_ * dtype_bytes(p_.activation));
    saturated_.now = std::make_unique<DeviceBuffer>(std::vector<int64_t>{0});
    for (Pool* x : all()) x->kept = std::make_unique<DeviceBuffer>(x->now->bytes());
  }

  const CudaPlan& plan() const { return *plan_; }
  const std::vector<Row>& rows() const { return rows_; }

  // The pools as they were at first, and poisoned outputs.
  void reset() {
    for (Pool* x : all()) {
      if (x->first != nullptr) copy(*x->first, *x->now);
    }
    cuda_check(cudaMemset(out_.now->data(), 0xff, out_.now->bytes()), "reset");
    cuda_check(cudaMemset(saturated_.now->data(), 0, 8), "reset");
  }
  // Keeps all that a step may change: outputs, pools, the overflow count.
  void keep() {
    for (Pool* x : all()) copy(*x->now, *x->kept);
  }
  // What of it is no longer as it was kept, by name.
  std::vector<std::string> changes() {
    const auto pools = all();
    const DeviceBuffer differ(std::vector<int>(pools.size()));
    for (size_t i = 0; i < pools.size(); ++i) {
      compare_bytes(*pools[i]->now, *pools[i]->kept, static_cast<int*>(differ.data()) + i);
    }
    const std::vector<int> differs = differ.download<int>(std::ssize(pools));
    std::vector<std::string> out;
    for (size_t i = 0; i < pools.size(); ++i) {
      if (differs[i] != 0) out.push_back(pools[i]->name);
    }
    return out;
  }
  StepArgs args(const Row* rows, int n_rows) const {  // rows: on the device
    StepArgs a;
    a.rows = rows;
    a.n_rows = n_rows;
    a.query = {query_->data(), keys_};
    a.key = {key_->data(), keys_};
    a.value = {value_->data(), values_};
    a.gate = {gate_->data(), gates_};
    a.beta = {beta_->data(), p_.n_heads};
    a.a_log = static_cast<const float*>(a_log_->data());
    a.dt_bias = static_cast<const float*>(dt_bias_->data());
    a.skip = static_cast<const float*>(skip_->data());
    a.out = {out_.now->data(), values_};
    a.checkpoint = checkpoint_.now->data();
    a.checkpoint_slot_stride = plan_->checkpoint_elements();
    a.scale = static_cast<float*>(scale_.now->data());
    a.scale_slot_stride = plan_->scale_elements();
    a.ring_key = {ring_key_.now->data(), p_.grid.ring_rows * keys_, keys_};
    a.ring_value = {ring_value_.now->data(), p_.grid.ring_rows * values_, values_};
    a.ring_gate = {ring_gate_.now->data(), p_.grid.ring_rows * gates_, gates_};
    a.n_saturated = static_cast<int64_t*>(saturated_.now->data());
    return a;
  }
  // Runs the rows in launches of so many.
  void step(const std::vector<Row>& rows, size_t batch = kAllRows) {
    const DeviceBuffer device_rows(rows);
    const auto* from = static_cast<const Row*>(device_rows.data());
    for (size_t at = 0; at < rows.size(); at += std::min(batch, rows.size() - at)) {
      const auto n = static_cast<int>(std::min(batch, rows.size() - at));
      plan_->step(args(from + at, n), nullptr);
    }
    cuda_check(cudaDeviceSynchronize(), "step");
  }
  // On the host.
  struct Bytes {
    std::vector<uint8_t> out, checkpoint, ring_key, ring_value, ring_gate;
  };
  Bytes bytes() const {
    const auto of = [](const Pool& x) { return x.now->download<uint8_t>(x.now->bytes()); };
    return {of(out_), of(checkpoint_), of(ring_key_), of(ring_value_), of(ring_gate_)};
  }

 private:
  struct Pool {
    const char* name;
    std::unique_ptr<DeviceBuffer> first = nullptr, now = nullptr, kept = nullptr;
  };

  std::array<Pool*, 7> all() {
    return {&out_, &checkpoint_, &scale_, &ring_key_, &ring_value_, &ring_gate_, &saturated_};
  }
  static void copy(const DeviceBuffer& from, DeviceBuffer& to) {
    cuda_check(cudaMemcpy(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice), "copy");
  }

  void make_rows(int n_rows) {
    std::vector<int> slots(n_slots_), rings(n_slots_);
    std::iota(slots.begin(), slots.end(), 0);
    std::iota(rings.begin(), rings.end(), 0);
    std::shuffle(slots.begin(), slots.end(), rng_);
    std::shuffle(rings.begin(), rings.end(), rng_);
    const int b = p_.grid.interval;
    for (int i = 0; i < n_rows; ++i) {
      Row row;
      row.n = i % 11 == 0 ? i % b : 2 * b + i % b;  // some in their first interval: c = 0
      // A fold is pending for one step at most, so n is less than max_window beyond the grid point.
      const bool pending_fold = i % 3 == 0 && row.n >= b && row.n % b < p_.max_window;
      row.c = p_.grid.checkpoint_of(row.n) - (pending_fold ? b : 0);
      const int touched = static_cast<int>(rng_() % (p_.max_window + 1));
      const int pending = i % 5 == 0 ? static_cast<int>(rng_() % (touched + 1)) : 0;
      row.start = row.n + pending;
      row.n_tokens = touched - pending;
      row.token = n_tokens_;
      n_tokens_ += row.n_tokens + 1;  // a hole behind each row
      row.read_slot = i % 13 == 12 ? -1 : slots[2 * i];
      row.write_slot = i % 2 == 0 ? slots[2 * i] : slots[2 * i + 1];
      row.ring_slot = rings[i];
      rows_.push_back(row);
    }
    std::shuffle(rows_.begin(), rows_.end(), rng_);  // kinds of rows in any order
  }
  std::vector<uint8_t> values(int64_t n, DType dtype, bool decay) {
    std::normal_distribution<float> normal;
    std::vector<uint8_t> bytes(static_cast<size_t>(n * dtype_bytes(dtype)));
    for (int64_t i = 0; i < n; ++i) {
      float x = normal(rng_);
      if (decay) x = (p_.family == Family::kMamba2 ? 0.1f : -0.1f) * std::fabs(x);
      switch (dtype) {
        case DType::kF32:
          std::memcpy(&bytes[i * 4], &x, 4);
          break;
        case DType::kF16:
        case DType::kBF16: {
          const uint16_t bits = dtype == DType::kF16 ? float_to_half(x) : float_to_bf16(x);
          std::memcpy(&bytes[i * 2], &bits, 2);
          break;
        }
        case DType::kI8:
          bytes[i] = static_cast<uint8_t>(1 + rng_() % 255);
      }
    }
    return bytes;
  }
  std::unique_ptr<DeviceBuffer> random(int64_t n, DType dtype) {
    return std::make_unique<DeviceBuffer>(values(n, dtype, false));
  }
  // One slot's worth of random values, repeated from other places for the other slots.
  void pool(Pool& to, int64_t slot_bytes, DType dtype, bool decay = false) {
    const int64_t element = dtype_bytes(dtype), n = slot_bytes / element;
    const std::vector<uint8_t> some = values(2 * n, dtype, decay);
    std::vector<uint8_t> slots(static_cast<size_t>(slot_bytes * n_slots_));
    for (int64_t slot = 0; slot < n_slots_ && n > 0; ++slot) {
      const int64_t from = static_cast<int64_t>(rng_() % (n + 1)) * element;
      std::memcpy(slots.data() + slot * slot_bytes, some.data() + from, slot_bytes);
    }
    to.first = std::make_unique<DeviceBuffer>(slot_bytes * n_slots_);
    if (n > 0) to.first->upload(slots);
    to.now = std::make_unique<DeviceBuffer>(slot_bytes * n_slots_);
  }

  Problem p_;
  std::shared_ptr<const CudaPlan> plan_;
  std::mt19937_64 rng_;
  int n_slots_;
  int64_t keys_, values_, gates_, n_tokens_ = 0;
  std::vector<Row> rows_;
  Pool out_{"outputs"}, checkpoint_{"checkpoints"}, scale_{"scales"}, ring_key_{"ring keys"},
      ring_value_{"ring values"}, ring_gate_{"ring gates"}, saturated_{"overflow count"};
  std::unique_ptr<DeviceBuffer> query_, key_, value_, gate_, beta_, a_log_, dt_bias_, skip_;
};

}  // namespace replayssm::test
