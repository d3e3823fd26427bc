#include "replay/capi/checks.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "replay/capi/error.h"

namespace replayssm::capi {
namespace {

// Rows and sequences lie in the caller's arrays, on a device even, and are used in place.
static_assert(sizeof(rssm_row) == sizeof(Row) && sizeof(rssm_sequence) == sizeof(SequenceState));
static_assert(offsetof(rssm_row, n) == offsetof(Row, n) &&
              offsetof(rssm_row, c) == offsetof(Row, c) &&
              offsetof(rssm_row, start) == offsetof(Row, start) &&
              offsetof(rssm_row, n_tokens) == offsetof(Row, n_tokens) &&
              offsetof(rssm_row, token) == offsetof(Row, token) &&
              offsetof(rssm_row, read_slot) == offsetof(Row, read_slot) &&
              offsetof(rssm_row, write_slot) == offsetof(Row, write_slot) &&
              offsetof(rssm_row, ring_slot) == offsetof(Row, ring_slot));
static_assert(offsetof(rssm_sequence, n) == offsetof(SequenceState, n) &&
              offsetof(rssm_sequence, c) == offsetof(SequenceState, c) &&
              offsetof(rssm_sequence, checkpoint_slot) ==
                  offsetof(SequenceState, checkpoint_slot) &&
              offsetof(rssm_sequence, ring_slot) == offsetof(SequenceState, ring_slot));
static_assert(RSSM_MAMBA2 == static_cast<int>(Family::kMamba2) &&
              RSSM_GDN == static_cast<int>(Family::kGdn) &&
              RSSM_KDA == static_cast<int>(Family::kKda) &&
              RSSM_F32 == static_cast<int>(DType::kF32) &&
              RSSM_F16 == static_cast<int>(DType::kF16) &&
              RSSM_BF16 == static_cast<int>(DType::kBF16) &&
              RSSM_I8 == static_cast<int>(DType::kI8) &&
              RSSM_GATE_SOFTPLUS == static_cast<int>(DecayGate::kSoftplus) &&
              RSSM_GATE_BOUNDED == static_cast<int>(DecayGate::kBounded));

constexpr int64_t kMaxPosition = int64_t{1} << 62;
constexpr int kMaxWorkers = 1 << 16;
// Device kernels address a slot's rows in 32 bits.
constexpr int64_t kMaxSlotSpan = (int64_t{1} << 32) - 1;

// The array as the library's type. The barrier keeps a link-time optimiser from telling the
// caller's writes through one type and the library's reads through the other apart.
template <typename To, typename From>
To* in_place(From* data) {
  To* out = reinterpret_cast<To*>(data);
  asm volatile("" : "+r"(out) : : "memory");
  return out;
}

// The first fault of a call's arguments; what follows it is not looked at.
class Checker {
 public:
  explicit Checker(const Memory& memory) : memory_(memory) {}
  rssm_status status() const { return status_; }
  bool ok() const { return status_ == RSSM_OK; }

  void range(const char* name, int64_t value, int64_t low, int64_t high) {
    if (!ok() || (value >= low && value <= high)) return;
    status_ = fail(RSSM_OUT_OF_RANGE, "%s = %lld is outside %lld..%lld", name,
                   static_cast<long long>(value), static_cast<long long>(low),
                   static_cast<long long>(high));
  }
  // `strict`: the alignment that the backend requires of its large tensors; otherwise only that of
  // an element.
  void pointer(const char* name, const void* p, int64_t element, bool strict = false) {
    if (!ok()) return;
    if (p == nullptr) {
      status_ = fail(RSSM_NULL, "%s is null", name);
      return;
    }
    const int64_t alignment = strict && memory_.alignment > element ? memory_.alignment : element;
    if (reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(alignment) != 0) {
      status_ = fail(RSSM_MISALIGNED, "%s is not aligned to %lld bytes", name,
                     static_cast<long long>(alignment));
    }
  }
  // `count` vectors of `size` elements, `value` elements apart.
  void stride(const char* name, int64_t value, int64_t size, int64_t count, int64_t element,
              bool strict = false) {
    range(name, value, size, std::numeric_limits<int64_t>::max() / 8 / (count > 0 ? count : 1));
    if (!ok() || !strict) return;
    if (value % memory_.stride_multiple != 0 || value * element % memory_.alignment != 0) {
      status_ =
          fail(RSSM_MISALIGNED, "%s = %lld is not a multiple of %lld elements and %lld bytes", name,
               static_cast<long long>(value), static_cast<long long>(memory_.stride_multiple),
               static_cast<long long>(memory_.alignment));
    }
  }
  void tokens(const char* name, const void* data, int64_t stride_elements, int64_t size,
              int64_t count, int64_t element, bool strict) {
    pointer(name, data, element, strict);
    const Name stride_name(name, ".token_stride");
    stride(stride_name.text, stride_elements, size, count, element, strict);
  }
  void ring(const char* name, const rssm_ring& r, int64_t size, int64_t rows, int64_t slots,
            int64_t element, bool strict) {
    pointer(name, r.data, element, strict);
    const Name row_name(name, ".row_stride"), slot_name(name, ".slot_stride");
    stride(row_name.text, r.row_stride, size, rows, element, strict);
    if (!memory_.is_host) range(row_name.text, r.row_stride, size, kMaxSlotSpan / rows / element);
    if (!ok()) return;
    stride(slot_name.text, r.slot_stride, (rows - 1) * r.row_stride + size, slots, element, strict);
  }

 private:
  struct Name {
    Name(const char* a, const char* b) { std::strcat(std::strcpy(text, a), b); }
    char text[64];  // two literals of this file
  };

  const Memory& memory_;
  rssm_status status_ = RSSM_OK;
};

template <typename T>
rssm_status check_struct(const char* name, const T* from) {
  if (from == nullptr) return fail(RSSM_NULL, "%s is null", name);
  if (from->size == sizeof(T)) return RSSM_OK;
  return fail(RSSM_BAD_SIZE, "%s.size = %zu, not %zu", name, from->size, sizeof(T));
}

rssm_status check_row_bytes(size_t row_bytes) {
  if (row_bytes == sizeof(rssm_row)) return RSSM_OK;
  return fail(RSSM_BAD_SIZE, "row_bytes = %zu, not %zu", row_bytes, sizeof(rssm_row));
}

rssm_status check_enum(const char* name, int32_t value, int32_t last) {
  if (value >= 0 && value <= last) return RSSM_OK;
  return fail(RSSM_OUT_OF_RANGE, "%s = %d is outside 0..%d", name, value, last);
}

void run_alone(void*, int64_t count, ParallelFor::Function function, const void* arg) {
  for (int64_t i = 0; i < count; ++i) function(arg, i, 0);
}

rssm_status check_parallel(const rssm_parallel_for* from, ParallelFor* to) {
  *to = {run_alone, nullptr, 1};
  if (from == nullptr) return RSSM_OK;
  if (rssm_status s = check_struct("parallel", from); s != RSSM_OK) return s;
  if (from->run == nullptr) return fail(RSSM_NULL, "parallel.run is null");
  if (from->n_workers < 1 || from->n_workers > kMaxWorkers) {
    return fail(RSSM_OUT_OF_RANGE, "parallel.n_workers = %d is outside 1..%d", from->n_workers,
                kMaxWorkers);
  }
  *to = {from->run, from->ctx, from->n_workers};
  return RSSM_OK;
}

rssm_status row_fault(int32_t i, const char* field, int64_t value, const char* why) {
  return fail(RSSM_OUT_OF_RANGE, "rows[%d].%s = %lld %s", i, field, static_cast<long long>(value),
              why);
}

// A row's window lies in the packed tokens, and its ring slot in the pool.
rssm_status check_window(int32_t i, const Row& row, int64_t n_tokens, int32_t n_ring_slots) {
  if (row.n < 0 || row.n > kMaxPosition) return row_fault(i, "n", row.n, "is no position");
  if (row.start < row.n || row.start > kMaxPosition) {
    return row_fault(i, "start", row.start, "is no position from n on");
  }
  if (row.n_tokens < 0) return row_fault(i, "n_tokens", row.n_tokens, "is below 0");
  if (row.n_tokens > 0 && (row.token < 0 || row.token > n_tokens - row.n_tokens)) {
    return row_fault(i, "token", row.token, "puts the window outside the packed tokens");
  }
  if (row.ring_slot < 0 || row.ring_slot >= n_ring_slots) {
    return row_fault(i, "ring_slot", row.ring_slot, "is outside the pool");
  }
  return RSSM_OK;
}

rssm_status check_row(const Problem& p, Call call, int32_t i, const Row& row, int64_t n_tokens,
                      int32_t n_slots, int32_t n_ring_slots) {
  if (row.read_slot == -1) return RSSM_OK;
  if (call == Call::kFold && row.n_tokens != 0) {
    return row_fault(i, "n_tokens", row.n_tokens, "is not 0, as a fold's must be");
  }
  if (rssm_status s = check_window(i, row, n_tokens, n_ring_slots); s != RSSM_OK) return s;
  const int64_t grid = p.grid.checkpoint_of(row.n);
  if (row.c < 0 || (row.c != grid && row.c != grid - p.grid.interval)) {
    return row_fault(i, "c", row.c, "is neither g(n) nor g(n) - B");
  }
  if (call == Call::kSweep && row.start != row.n) {
    return row_fault(i, "start", row.start, "is not n, as a sweep's must be");
  }
  const int64_t end = row.start + row.n_tokens;
  if (call != Call::kSweep && end - row.n > p.max_window) {
    return row_fault(i, "n_tokens", row.n_tokens, "takes the window past n + max_window");
  }
  if (row.read_slot < 0 || row.read_slot >= n_slots) {
    return row_fault(i, "read_slot", row.read_slot, "is neither -1 nor in the pool");
  }
  const int64_t stored = call == Call::kSweep ? p.grid.checkpoint_of(end) : grid;
  if (stored != row.c && (row.write_slot < 0 || row.write_slot >= n_slots)) {
    return row_fault(i, "write_slot", row.write_slot, "is outside the pool");
  }
  return RSSM_OK;
}

}  // namespace

Row to_row(const rssm_row& row) { return *in_place<const Row>(&row); }

rssm_status check(const rssm_problem* from, Problem* to) {
  if (rssm_status s = check_struct("problem", from); s != RSSM_OK) return s;
  struct {
    const char* name;
    int32_t value, last;
  } const enums[] = {{"backend", from->backend, RSSM_CUDA},
                     {"family", from->family, RSSM_KDA},
                     {"activation", from->activation, RSSM_I8},
                     {"ring", from->ring, RSSM_I8},
                     {"checkpoint", from->checkpoint, RSSM_I8},
                     {"decay_gate", from->decay_gate, RSSM_GATE_BOUNDED}};
  for (const auto& e : enums) {
    if (rssm_status s = check_enum(e.name, e.value, e.last); s != RSSM_OK) return s;
  }
  to->family = static_cast<Family>(from->family);
  to->n_heads = from->n_heads;
  to->n_key_heads = from->n_key_heads;
  to->value_dim = from->value_dim;
  to->key_dim = from->key_dim;
  to->grid = {from->interval, from->ring_rows};
  to->max_window = from->max_window;
  to->activation = static_cast<DType>(from->activation);
  to->ring = static_cast<DType>(from->ring);
  to->checkpoint = static_cast<DType>(from->checkpoint);
  to->beta_scale = from->beta_scale;
  to->decay_gate = static_cast<DecayGate>(from->decay_gate);
  to->decay_lower_bound = from->decay_lower_bound;
  return RSSM_OK;
}

rssm_status check(const rssm_conv_problem* from, ConvProblem* to) {
  if (rssm_status s = check_struct("problem", from); s != RSSM_OK) return s;
  if (rssm_status s = check_enum("backend", from->backend, RSSM_CUDA); s != RSSM_OK) return s;
  if (rssm_status s = check_enum("activation", from->activation, RSSM_I8); s != RSSM_OK) return s;
  *to = {from->n_channels, from->width, from->ring_rows, static_cast<DType>(from->activation)};
  return RSSM_OK;
}

rssm_status check(const Layer& layer, Call call, const rssm_step_args* from, StepArgs* to,
                  ParallelFor* parallel) {
  if (rssm_status s = check_struct("args", from); s != RSSM_OK) return s;
  if (rssm_status s = check_row_bytes(from->row_bytes); s != RSSM_OK) return s;
  const Problem& p = layer.problem();
  const Memory& memory = layer.memory();
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  Checker checker(memory);
  checker.range("n_rows", from->n_rows, 0, kMax);
  if (!checker.ok() || from->n_rows == 0) {
    *to = {};
    return checker.status();
  }
  const bool kda = p.family == Family::kKda, mamba = p.family == Family::kMamba2;
  const int64_t n_tokens = call == Call::kFold ? 0 : from->n_tokens;
  const int64_t keys = int64_t{p.n_key_heads} * p.key_dim;
  const int64_t values = int64_t{p.n_heads} * p.value_dim;
  const int64_t gates = kda ? int64_t{p.n_heads} * p.key_dim : p.n_heads;
  const int64_t activation = dtype_bytes(p.activation), ring = dtype_bytes(p.ring);
  const int64_t checkpoint = dtype_bytes(p.checkpoint);

  checker.range("n_slots", from->n_slots, 1, kMax);
  checker.range("n_ring_slots", from->n_ring_slots, 1, kMax);
  if (call == Call::kStep) {
    checker.range("hints", from->hints, 0, RSSM_HINT_SINGLE | RSSM_HINT_EARLY);
  }
  checker.range("n_tokens", n_tokens, 0, kMaxPosition);
  checker.pointer("rows", from->rows, alignof(Row));
  if (n_tokens > 0) {
    const auto tokens = [&](const char* name, const void* data, int64_t stride, int64_t size,
                            int64_t element, bool strict) {
      checker.tokens(name, data, stride, size, n_tokens, element, strict);
    };
    tokens("query", from->query.data, from->query.token_stride, keys, activation, true);
    tokens("key", from->key.data, from->key.token_stride, keys, activation, true);
    tokens("value", from->value.data, from->value.token_stride, values, activation, true);
    tokens("gate", from->gate.data, from->gate.token_stride, gates, 4, kda);
    if (!mamba) tokens("beta", from->beta.data, from->beta.token_stride, p.n_heads, 4, false);
    tokens("out", from->out.data, from->out.token_stride, values, activation, true);
  }
  checker.pointer("a_log", from->a_log, 4);
  checker.pointer("dt_bias", from->dt_bias, 4);
  if (mamba) checker.pointer("skip", from->skip, 4);
  checker.pointer("checkpoint", from->checkpoint, checkpoint, true);
  checker.stride("checkpoint_slot_stride", from->checkpoint_slot_stride,
                 layer.checkpoint_elements(), from->n_slots, checkpoint, true);
  if (p.checkpoint == DType::kI8) {
    checker.pointer("scale", from->scale, 4);
    checker.stride("scale_slot_stride", from->scale_slot_stride, layer.scale_elements(),
                   from->n_slots, 4);
  }
  const int64_t rows = p.grid.ring_rows, slots = from->n_ring_slots;
  checker.ring("ring_value", from->ring_value, values, rows, slots, ring, true);
  checker.ring("ring_key", from->ring_key, keys, rows, slots, ring, true);
  checker.ring("ring_gate", from->ring_gate, gates, rows, slots, 4, kda);
  if (from->n_saturated != nullptr) checker.pointer("n_saturated", from->n_saturated, 8);
  if (!checker.ok()) return checker.status();

  const Row* row = in_place<const Row>(from->rows);
  if (memory.is_host) {
    if (rssm_status s = check_parallel(from->parallel, parallel); s != RSSM_OK) return s;
    const size_t bytes = layer.workspace_bytes(parallel->n_workers);
    if (from->workspace_bytes < bytes) {
      return fail(RSSM_OUT_OF_RANGE, "workspace_bytes = %zu is below %zu", from->workspace_bytes,
                  bytes);
    }
    checker.pointer("workspace", from->workspace, 64);
    if (!checker.ok()) return checker.status();
    for (int32_t i = 0; i < from->n_rows; ++i) {
      const rssm_status s =
          check_row(p, call, i, row[i], n_tokens, from->n_slots, from->n_ring_slots);
      if (s != RSSM_OK) return s;
      if (call == Call::kStep && (from->hints & RSSM_HINT_SINGLE) != 0 && row[i].read_slot >= 0 &&
          (row[i].n_tokens > 1 || row[i].start != row[i].n)) {
        return row_fault(i, "n_tokens", row[i].n_tokens, "breaks RSSM_HINT_SINGLE");
      }
    }
  }

  to->rows = row;
  to->n_rows = from->n_rows;
  to->query = {from->query.data, from->query.token_stride};
  to->key = {from->key.data, from->key.token_stride};
  to->value = {from->value.data, from->value.token_stride};
  to->gate = {from->gate.data, from->gate.token_stride};
  to->beta = {from->beta.data, from->beta.token_stride};
  to->a_log = from->a_log;
  to->dt_bias = from->dt_bias;
  to->skip = from->skip;
  to->out = {from->out.data, from->out.token_stride};
  to->checkpoint = from->checkpoint;
  to->checkpoint_slot_stride = from->checkpoint_slot_stride;
  to->scale = from->scale;
  to->scale_slot_stride = from->scale_slot_stride;
  const auto ring_of = [](const rssm_ring& r) { return Ring{r.data, r.slot_stride, r.row_stride}; };
  to->ring_value = ring_of(from->ring_value);
  to->ring_key = ring_of(from->ring_key);
  to->ring_gate = ring_of(from->ring_gate);
  to->n_saturated = from->n_saturated;
  to->workspace = from->workspace;
  return RSSM_OK;
}

rssm_status check(const Conv& conv, const rssm_conv_args* from, ConvArgs* to,
                  ParallelFor* parallel) {
  if (rssm_status s = check_struct("args", from); s != RSSM_OK) return s;
  if (rssm_status s = check_row_bytes(from->row_bytes); s != RSSM_OK) return s;
  const ConvProblem& p = conv.problem();
  const Memory& memory = conv.memory();
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t element = dtype_bytes(p.activation);
  Checker checker(memory);
  checker.range("n_rows", from->n_rows, 0, kMax);
  if (!checker.ok() || from->n_rows == 0) {
    *to = {};
    return checker.status();
  }
  checker.range("n_ring_slots", from->n_ring_slots, 1, kMax);
  checker.range("n_tokens", from->n_tokens, 0, kMaxPosition);
  checker.pointer("rows", from->rows, alignof(Row));
  if (from->n_tokens > 0) {
    checker.tokens("in", from->in.data, from->in.token_stride, p.n_channels, from->n_tokens,
                   element, true);
    checker.tokens("out", from->out.data, from->out.token_stride, p.n_channels, from->n_tokens,
                   element, true);
  }
  checker.pointer("weight", from->weight, 4, true);
  if (from->bias != nullptr) checker.pointer("bias", from->bias, 4, true);
  checker.ring("ring", from->ring, p.n_channels, p.ring_rows, from->n_ring_slots, element, true);
  if (!checker.ok()) return checker.status();

  const Row* row = in_place<const Row>(from->rows);
  if (memory.is_host) {
    if (rssm_status s = check_parallel(from->parallel, parallel); s != RSSM_OK) return s;
    for (int32_t i = 0; i < from->n_rows; ++i) {
      if (row[i].read_slot == -1) continue;
      const rssm_status s = check_window(i, row[i], from->n_tokens, from->n_ring_slots);
      if (s != RSSM_OK) return s;
      if (row[i].read_slot < 0) return row_fault(i, "read_slot", row[i].read_slot, "is below -1");
    }
  }
  *to = {row,
         from->n_rows,
         {from->in.data, from->in.token_stride},
         {from->out.data, from->out.token_stride},
         from->weight,
         from->bias,
         {from->ring.data, from->ring.slot_stride, from->ring.row_stride}};
  return RSSM_OK;
}

rssm_status check(const rssm_commit_args* from, CommitArgs* to) {
  if (rssm_status s = check_struct("args", from); s != RSSM_OK) return s;
  if (rssm_status s = check_row_bytes(from->row_bytes); s != RSSM_OK) return s;
  Checker checker(kHostMemory);
  checker.range("n_rows", from->n_rows, 0, std::numeric_limits<int32_t>::max());
  if (!checker.ok() || from->n_rows == 0) {
    *to = {};
    return checker.status();
  }
  checker.pointer("rows", from->rows, alignof(Row));
  if (from->is_sweep == 0) checker.pointer("advance", from->advance, 4);
  checker.pointer("sequences", from->sequences, alignof(SequenceState));
  checker.pointer("n_refused", from->n_refused, 8);
  if (!checker.ok()) return checker.status();
  *to = {
      in_place<const Row>(from->rows),          from->n_rows,   from->is_sweep != 0, from->advance,
      in_place<SequenceState>(from->sequences), from->n_refused};
  return RSSM_OK;
}

rssm_status check_slot(const Layer& layer, const void* slot, const float* scale,
                       const void* canonical) {
  const DType dtype = layer.problem().checkpoint;
  Checker checker(layer.memory());
  checker.pointer("slot", slot, dtype_bytes(dtype), true);
  if (dtype == DType::kI8) checker.pointer("scale", scale, 4);
  checker.pointer("canonical", canonical, 4);
  return checker.status();
}

}  // namespace replayssm::capi
