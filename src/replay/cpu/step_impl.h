// One unit of work of a step or sweep: some heads of one key head of one batch row. Each
// instruction set's translation unit includes this once; nothing here calls out-of-line templates
// of the standard library, whose instances would be shared between the sets.
#pragma once

#include "replay/cpu/rows_impl.h"
#include "replay/cpu/state_impl.h"

namespace replayssm::cpu::REPLAYSSM_ISA {
namespace {

// Computes a unit as step.h and docs/contract.md say: a pending fold, then the window's tokens in
// chunks of at most kChunk inside one grid interval, with a fold on chip at every grid point. One
// thread runs it; units of the same row share only ring keys, which the unit of a key head's first
// heads writes.
class Unit {
 public:
  Unit(const Problem& problem, const Layout& layout, const StepArgs& args, const Row& row,
       int head_begin, int head_end, int next_end, char* scratch, int64_t* saturated)
      : p_(problem),
        l_(layout),
        a_(args),
        row_(row),
        head_begin_(head_begin),
        head_end_(head_end),
        next_end_(next_end),
        key_head_(head_begin / layout.heads_per_key),
        saturated_(saturated) {
    s_.place(problem, layout, scratch);
  }

  void run(bool sweep) {
    const int interval = p_.grid.interval;
    const int64_t end = row_.start + row_.n_tokens;
    use_slot(row_.read_slot, row_.c == 0);
    write_keys_now_ = !sweep && head_begin_ % l_.heads_per_key == 0;
    if (p_.grid.fold_pending(row_.n, row_.c)) {
      base_ = row_.c;
      load_rows(row_.c, row_.c + interval);
      fold(/*to_slot=*/true, saturated_);
    }
    if (row_.n_tokens == 0) return;
    base_ = p_.grid.checkpoint_of(row_.n);
    // A sweep leaves only the rows after its last grid point; the ring may be too short for more.
    write_from_ = sweep ? p_.grid.checkpoint_of(end) : row_.start;
    load_rows(base_, row_.start < base_ + interval ? row_.start : base_ + interval);
    int64_t position = row_.start;
    for (;;) {
      const int64_t next = base_ + interval;
      const int64_t stop = end < next ? end : next;
      while (position < stop) {
        const int n = stop - position < kChunk ? static_cast<int>(stop - position) : kChunk;
        chunk(position, n);
        position += n;
      }
      if (sweep ? end < next : end <= next) break;
      // A step repeats this fold when its tokens are committed; saturation is counted then.
      int64_t counted_when_written = 0;
      fold(/*to_slot=*/sweep && end < next + interval, sweep ? saturated_ : &counted_when_written);
      base_ = next;
      n_rows_ = 0;
      if (row_.start > base_) load_rows(base_, row_.start);
    }
  }

 private:
  bool is_kda() const { return p_.family == Family::kKda; }
  bool is_mamba() const { return p_.family == Family::kMamba2; }
  bool has_scales() const { return p_.checkpoint == DType::kI8; }

  // ---- the state that this unit reads

  void use_slot(int slot, bool zero_state) {
    state_ = nullptr;
    if (zero_state) return;
    state_ = static_cast<const char*>(a_.checkpoint) +
             slot * a_.checkpoint_slot_stride * dtype_bytes(p_.checkpoint);
    state_head0_ = 0;
    const char* slot_begin = static_cast<const char*>(state_);
    ahead_.at = slot_begin + head_end_ * l_.head_elements * dtype_bytes(p_.checkpoint);
    ahead_.end = slot_begin + next_end_ * l_.head_elements * dtype_bytes(p_.checkpoint);
    if (has_scales()) scale_ = a_.scale + slot * a_.scale_slot_stride;
  }

  int64_t head_element(int head) const { return (head - state_head0_) * l_.head_elements; }
  const float* head_scale(int head) const {
    return has_scales() ? scale_ + int64_t{head - state_head0_} * l_.value_padded : nullptr;
  }

  // Folds all rows of the interval at base_ into the checkpoint's dtype, to the write slot or to
  // scratch (on chip). From then on the state is read from there.
  void fold(bool to_slot, int64_t* saturated) {
    char* to = static_cast<char*>(s_.state);
    float* to_scale = has_scales() ? s_.scale : nullptr;
    int to_head0 = head_begin_;
    if (to_slot) {
      to = static_cast<char*>(a_.checkpoint) +
           row_.write_slot * a_.checkpoint_slot_stride * dtype_bytes(p_.checkpoint);
      if (has_scales()) to_scale = a_.scale + row_.write_slot * a_.scale_slot_stride;
      to_head0 = 0;
    }
    for (int head = head_begin_; head < head_end_; ++head) {
      float weight[kMaxInterval];
      fold_weights(head, weight);
      void* to_head = to + (head - to_head0) * l_.head_elements * dtype_bytes(p_.checkpoint);
      float* to_head_scale =
          has_scales() ? to_scale + int64_t{head - to_head0} * l_.value_padded : nullptr;
      int tile = 0;
      for (; tile + kFoldTiles <= l_.n_tiles; tile += kFoldTiles) {
        fold_head_tiles<kFoldTiles>(head, tile, weight, to_head, to_head_scale, saturated);
      }
      for (; tile < l_.n_tiles; ++tile) {
        fold_head_tiles<1>(head, tile, weight, to_head, to_head_scale, saturated);
      }
    }
    state_ = to;
    scale_ = to_scale;
    state_head0_ = to_head0;
  }

  template <int kTiles>
  void fold_head_tiles(int head, int tile, const float* weight, void* to, float* to_scale,
                       int64_t* saturated) {
    const float* values = values_of(head) + tile * kTile;
    for (int j = 0; j < p_.grid.interval; ++j) {
      for (int i = 0; i < kTiles; ++i) {
        const V u = load(values + int64_t{j} * l_.value_padded + i * kTile);
        store(s_.weighted + (j * kTiles + i) * kTile, mul(set1(weight[j]), u));
      }
    }
    switch (p_.checkpoint) {
      case DType::kF32:
        fold_typed<DType::kF32, kTiles>(head, tile, to, to_scale, saturated);
        break;
      case DType::kF16:
        fold_typed<DType::kF16, kTiles>(head, tile, to, to_scale, saturated);
        break;
      case DType::kBF16:
        fold_typed<DType::kBF16, kTiles>(head, tile, to, to_scale, saturated);
        break;
      case DType::kI8:
        fold_typed<DType::kI8, kTiles>(head, tile, to, to_scale, saturated);
        break;
    }
  }

  template <DType kType, int kTiles>
  void fold_typed(int head, int tile, void* to, float* to_scale, int64_t* saturated) {
    const int64_t tile_elements = int64_t{kTile} * p_.key_dim;
    const int64_t from = head_element(head) + tile * tile_elements;
    const float* keys = is_kda() ? s_.fold_keys : s_.keys;
    if constexpr (kType != DType::kI8) {
      fold_tiles<kType, kType, kTiles>(state_, from, nullptr, p_.key_dim, p_.grid.interval,
                                       s_.state_decay, keys, l_.key_padded, s_.weighted, to,
                                       tile * tile_elements, saturated);
    } else {
      const float* scale = state_ == nullptr ? nullptr : head_scale(head) + tile * kTile;
      fold_tiles<kType, DType::kF32, kTiles>(state_, from, scale, p_.key_dim, p_.grid.interval,
                                             s_.state_decay, keys, l_.key_padded, s_.weighted,
                                             s_.tile, 0, saturated);
      for (int i = 0; i < kTiles; ++i) {
        store_tile_i8(s_.tile + i * tile_elements, p_.key_dim,
                      static_cast<int8_t*>(to) + (tile + i) * tile_elements,
                      to_scale + (tile + i) * kTile);
      }
    }
  }

  // weight[j] multiplies ring value j; state_decay the old state; KDA's keys carry their own decay.
  void fold_weights(int head, float* weight) {
    const int b = p_.grid.interval;
    if (is_kda()) {
      const int64_t last = int64_t{b - 1} * l_.key_padded;
      for (int k = 0; k < p_.key_dim; k += kLanes) {
        const int n = lanes_left(k, p_.key_dim);
        store_n(s_.state_decay + k, exp(load(s_.log_decay + last + k)), n);
        for (int j = 0; j < b; ++j) {
          const int64_t at = int64_t{j} * l_.key_padded + k;
          const V decay = exp(log_decay_between(last + k, at));
          store(s_.fold_keys + at, mul(decay, load(s_.keys + at)));
        }
      }
      for (int j = 0; j < b; ++j) weight[j] = 1.0f;
      return;
    }
    const float* g = log_decay_of(head);
    for (int j = 0; j < b; j += kLanes) {
      const int n = lanes_left(j, b);
      V w = exp(log_decay_since(head, b - 1, j, n));
      if (is_mamba()) w = mul(load_n(gates_of(head) + j, n), w);
      store_n(weight + j, w, n);
    }
    const float decay = exp1(g[b - 1]);
    for (int k = 0; k < p_.key_dim; ++k) s_.state_decay[k] = decay;
  }

  // ---- the rows of the current interval

  float* values_of(int head) const {
    return s_.values + int64_t{head - head_begin_} * p_.grid.interval * l_.value_padded;
  }
  float* log_decay_of(int head) const {
    return s_.log_decay + int64_t{head - head_begin_} * p_.grid.interval;
  }
  float* log_decay_low_of(int head) const {
    return s_.log_decay_low + int64_t{head - head_begin_} * p_.grid.interval;
  }
  // G_t - G_j for rows [j, j + n), and KDA's per channel. A difference of fp32 prefix sums alone
  // would lose what follows a strong decay.
  V log_decay_since(int head, int t, int j, int n) const {
    const float* g = log_decay_of(head);
    const float* low = log_decay_low_of(head);
    return add(sub(set1(g[t]), load_n(g + j, n)), sub(set1(low[t]), load_n(low + j, n)));
  }
  V log_decay_between(int64_t at_t, int64_t at_j) const {
    return add(sub(load(s_.log_decay + at_t), load(s_.log_decay + at_j)),
               sub(load(s_.log_decay_low + at_t), load(s_.log_decay_low + at_j)));
  }
  float* gates_of(int head) const {
    return s_.gates + int64_t{head - head_begin_} * p_.grid.interval;
  }

  // Appends one token's log decay (Mamba-2: dt) as row j, as a prefix sum with its rounding error
  // (Knuth's two-sum).
  void append_gate(int head, int j, float gate) {
    float* g = log_decay_of(head);
    float* low = log_decay_low_of(head);
    if (is_mamba()) {
      gates_of(head)[j] = gate;
      gate = -exp1(a_.a_log[head]) * gate;
    }
    const float before = j == 0 ? 0.0f : g[j - 1];
    const float sum = before + gate;
    const float added = sum - before;
    g[j] = sum;
    low[j] = (j == 0 ? 0.0f : low[j - 1]) + ((before - (sum - added)) + (gate - added));
  }
  void append_gates_kda(int j, const float* gates) {
    float* g = s_.log_decay + int64_t{j} * l_.key_padded;
    float* low = s_.log_decay_low + int64_t{j} * l_.key_padded;
    for (int k = 0; k < p_.key_dim; k += kLanes) {
      const V gate = load_n(gates + k, lanes_left(k, p_.key_dim));
      const V before = j == 0 ? zero() : load(g - l_.key_padded + k);
      const V low_before = j == 0 ? zero() : load(low - l_.key_padded + k);
      const V sum = add(before, gate);
      const V added = sub(sum, before);
      store(g + k, sum);
      store(low + k, add(low_before, add(sub(before, sub(sum, added)), sub(gate, added))));
    }
  }

  // Rows [from, to) of the ring become rows from - base_ on of the scratch.
  void load_rows(int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      const int j = static_cast<int>(t - base_);
      load_ring_row(p_.ring, a_.ring_key, row_.ring_slot, p_.grid.row_of(t),
                    int64_t{key_head_} * p_.key_dim, p_.key_dim,
                    s_.keys + int64_t{j} * l_.key_padded);
      const float* gates = gate_row(t);
      for (int head = head_begin_; head < head_end_; ++head) {
        load_ring_row(p_.ring, a_.ring_value, row_.ring_slot, p_.grid.row_of(t),
                      int64_t{head} * p_.value_dim, p_.value_dim,
                      values_of(head) + int64_t{j} * l_.value_padded);
        if (is_kda()) {
          append_gates_kda(j, gates + int64_t{head} * p_.key_dim);
        } else {
          append_gate(head, j, gates[head]);
        }
      }
    }
    n_rows_ = static_cast<int>(to > from ? to - base_ : 0);
  }

  float* gate_row(int64_t t) const {
    return static_cast<float*>(a_.ring_gate.data) + row_.ring_slot * a_.ring_gate.slot_stride +
           p_.grid.row_of(t) * a_.ring_gate.row_stride;
  }

  // ---- the window

  // Computes n <= kChunk tokens at `position`, which lie in one interval.
  void chunk(int64_t position, int n) {
    const int64_t token = row_.token + (position - row_.start);
    int64_t uncounted = 0;
    int64_t* count = head_begin_ % l_.heads_per_key == 0 ? saturated_ : &uncounted;
    const int per_token = is_mamba() ? 1 : 2;
    for (int t = 0; t < n; ++t) {
      float* key = s_.keys + int64_t{n_rows_ + t} * l_.key_padded;
      load_key(p_, l_, a_, token + t, key_head_, key, count);
      if (write_keys_now_) {
        store_ring_key(p_, a_, row_, position + t, key_head_, key);
      }
      load_query(p_, l_, a_, token + t, key_head_, operand(per_token * t + per_token - 1));
      if (is_mamba()) continue;
      for (int k = 0; k < l_.key_padded; k += kLanes) store(operand(2 * t) + k, load(key + k));
    }
    if (!is_kda()) operand_dots(per_token, n);
    for (int head = head_begin_; head < head_end_; ++head) {
      window_gates(head, position, token, n);
      if (is_kda()) {
        weights_kda(n);
      } else {
        weights(head, n);
      }
      if (state_ != nullptr) {
        products(p_.checkpoint,
                 static_cast<const char*>(state_) + head_element(head) * dtype_bytes(p_.checkpoint),
                 head_scale(head), l_, p_.key_dim, is_kda() ? s_.decayed : s_.operands,
                 per_token * n, s_.products, ahead_);
      } else {
        for (int64_t i = 0; i < int64_t{per_token} * n * l_.value_padded; ++i) s_.products[i] = 0;
      }
      outputs(head, position, token, n);
    }
    n_rows_ += n;
  }

  float* operand(int z) const { return s_.operands + int64_t{z} * l_.key_padded; }

  // dots[z][j] = k_j . z for every row up to the operand's own token; operands in pairs.
  void operand_dots(int per_token, int n) {
    const int b = p_.grid.interval;
    for (int z = 0; z < per_token * n; z += 2) {
      const int other = z + 1 < per_token * n ? z + 1 : z;
      const int last = n_rows_ + other / per_token;
      dots_of_pair(s_.keys, l_.key_padded, last + 1, operand(z), operand(other), s_.dots + z * b,
                   s_.dots + other * b);
    }
  }

  // Gates of the window's tokens: beta, and log decay (Mamba-2: dt) into the ring and the rows.
  void window_gates(int head, int64_t position, int64_t token, int n) {
    if (!is_mamba()) {
      float raw[kLanes] = {};
      for (int t = 0; t < n; ++t) raw[t] = token_float(a_.beta, token + t)[head];
      store(s_.beta, mul(set1(p_.beta_scale), sigmoid(load(raw))));
    }
    if (is_kda()) {
      for (int t = 0; t < n; ++t) {
        const float* raw = token_float(a_.gate, token + t) + int64_t{head} * p_.key_dim;
        const float* bias = a_.dt_bias + int64_t{head} * p_.key_dim;
        float gates[kMaxKeyDim];
        decay_gates_kda(p_, a_.a_log[head], raw, bias, gates);
        append_gates_kda(n_rows_ + t, gates);
        if (position + t < write_from_) continue;
        float* to = gate_row(position + t) + int64_t{head} * p_.key_dim;
        for (int k = 0; k < p_.key_dim; ++k) to[k] = gates[k];
      }
      return;
    }
    float raw[kLanes] = {};
    for (int t = 0; t < n; ++t) raw[t] = token_float(a_.gate, token + t)[head];
    V gate = softplus(add(load(raw), set1(a_.dt_bias[head])));
    if (!is_mamba()) gate = mul(set1(-exp1(a_.a_log[head])), gate);
    store(raw, gate);
    for (int t = 0; t < n; ++t) {
      append_gate(head, n_rows_ + t, raw[t]);
      if (position + t >= write_from_) gate_row(position + t)[head] = raw[t];
    }
  }

  // weights[t][j] = e^{G_t - G_j} (k_j . z_t), Mamba-2 times dt_j; decay[t] = e^{G_t}.
  void weights(int head, int n) {
    const int b = p_.grid.interval;
    const float* g = log_decay_of(head);
    for (int t = 0; t < n; ++t) {
      const int last = n_rows_ + t;
      const float* own = s_.dots + (is_mamba() ? t : 2 * t + 1) * b;
      s_.decay[t] = exp1(g[last]);
      for (int j = 0; j <= last; j += kLanes) {
        const int lanes = lanes_left(j, last + 1);
        V w = exp(log_decay_since(head, last, j, lanes));
        if (is_mamba()) {
          w = mul(load_n(gates_of(head) + j, lanes), w);
        } else {
          store_n(s_.weights_key + t * b + j, mul(w, load_n(s_.dots + 2 * t * b + j, lanes)),
                  lanes);
        }
        store_n(s_.weights_query + t * b + j, mul(w, load_n(own + j, lanes)), lanes);
      }
    }
  }

  // KDA: the decay is inside the dot, and inside the operands of the state product.
  void weights_kda(int n) {
    const int b = p_.grid.interval;
    for (int t = 0; t < n; ++t) {
      const int last = n_rows_ + t;
      const float* key = operand(2 * t);
      const float* query = operand(2 * t + 1);
      const int64_t at_t = int64_t{last} * l_.key_padded;
      for (int j0 = 0; j0 <= last; j0 += 8) {
        const int rows = last + 1 - j0 < 8 ? last + 1 - j0 : 8;
        V sum[2 * 8];
        for (V& v : sum) v = zero();
        for (int j = 0; j < rows; ++j) {
          const int64_t at = int64_t{j0 + j} * l_.key_padded;
          for (int k = 0; k < l_.key_padded; k += kLanes) {
            const V decay = exp(log_decay_between(at_t + k, at + k));
            const V decayed = mul(load(s_.keys + at + k), decay);
            sum[j] = fma(decayed, load(key + k), sum[j]);
            sum[8 + j] = fma(decayed, load(query + k), sum[8 + j]);
          }
        }
        float lanes[kLanes];
        store(lanes, reduce_add_16(sum));
        for (int j = 0; j < rows; ++j) {
          s_.weights_key[t * b + j0 + j] = lanes[j];
          s_.weights_query[t * b + j0 + j] = lanes[8 + j];
        }
      }
      float* decayed = s_.decayed + int64_t{2} * t * l_.key_padded;
      for (int k = 0; k < l_.key_padded; k += kLanes) {
        const V decay = exp(load(s_.log_decay + at_t + k));
        store(decayed + k, mul(decay, load(key + k)));
        store(decayed + l_.key_padded + k, mul(decay, load(query + k)));
      }
      s_.decay[t] = 1.0f;
    }
  }

  // Forward substitution over the window (GDN, KDA: u_t from earlier rows), kTiles tiles at a time.
  void outputs(int head, int64_t position, int64_t token, int n) {
    int tile = 0;
    for (; tile + kOutputTiles <= l_.n_tiles; tile += kOutputTiles) {
      output_tiles<kOutputTiles>(head, position, token, n, tile);
    }
    for (; tile < l_.n_tiles; ++tile) output_tiles<1>(head, position, token, n, tile);
  }

  template <int kTiles>
  void output_tiles(int head, int64_t position, int64_t token, int n, int tile) {
    for (int t = 0; t < n; ++t) {
      if (is_mamba()) {
        output_mamba<kTiles>(head, position + t, token + t, t, tile * kTile);
      } else {
        output_delta<kTiles>(head, position + t, token + t, t, tile * kTile);
      }
    }
  }

  template <int kTiles>
  REPLAYSSM_INLINE void output_delta(int head, int64_t position, int64_t token, int t, int v0) {
    const int b = p_.grid.interval;
    const int row = n_rows_ + t;
    const float* values = values_of(head) + v0;
    const float* product = s_.products + int64_t{2} * t * l_.value_padded + v0;
    const float* weight_key = s_.weights_key + t * b;
    const float* weight_query = s_.weights_query + t * b;
    const V decay = set1(s_.decay[t]);
    V read[kTiles];
    V out[kTiles];
    for (int i = 0; i < kTiles; ++i) {
      read[i] = mul(decay, load(product + i * kTile));
      out[i] = mul(decay, load(product + l_.value_padded + i * kTile));
    }
    for (int j = 0; j < row; ++j) {
      const V wk = set1(weight_key[j]);
      const V wq = set1(weight_query[j]);
#pragma GCC unroll 4
      for (int i = 0; i < kTiles; ++i) {
        const V u = load(values + int64_t{j} * l_.value_padded + i * kTile);
        read[i] = fma(wk, u, read[i]);
        out[i] = fma(wq, u, out[i]);
      }
    }
    for (int i = 0; i < kTiles; ++i) {
      const int lanes = lanes_left(v0 + i * kTile, p_.value_dim);
      const int64_t at = int64_t{head} * p_.value_dim + v0 + i * kTile;
      const V v = load_token(p_.activation, a_.value, token, at, lanes);
      const V u = round_to_ring(p_.ring, mul(set1(s_.beta[t]), sub(v, read[i])), saturated_);
      finish(head, position, token, row, v0 + i * kTile, lanes, u,
             fma(set1(weight_query[row]), u, out[i]));
    }
  }

  template <int kTiles>
  REPLAYSSM_INLINE void output_mamba(int head, int64_t position, int64_t token, int t, int v0) {
    const int row = n_rows_ + t;
    const float* values = values_of(head) + v0;
    const float* product = s_.products + int64_t{t} * l_.value_padded + v0;
    const float* weight = s_.weights_query + t * p_.grid.interval;
    const V decay = set1(s_.decay[t]);
    V out[kTiles];
    for (int i = 0; i < kTiles; ++i) out[i] = mul(decay, load(product + i * kTile));
    for (int j = 0; j < row; ++j) {
      const V w = set1(weight[j]);
#pragma GCC unroll 4
      for (int i = 0; i < kTiles; ++i) {
        out[i] = fma(w, load(values + int64_t{j} * l_.value_padded + i * kTile), out[i]);
      }
    }
    for (int i = 0; i < kTiles; ++i) {
      const int lanes = lanes_left(v0 + i * kTile, p_.value_dim);
      const int64_t at = int64_t{head} * p_.value_dim + v0 + i * kTile;
      const V x = load_token(p_.activation, a_.value, token, at, lanes);
      const V rounded = round_to_ring(p_.ring, x, saturated_);
      V y = fma(set1(weight[row]), rounded, out[i]);
      y = fma(set1(a_.skip[head]), x, y);
      finish(head, position, token, row, v0 + i * kTile, lanes, rounded, y);
    }
  }

  // A token's ring value into the scratch rows and the ring, its output to the caller.
  REPLAYSSM_INLINE void finish(int head, int64_t position, int64_t token, int row, int v0,
                               int lanes, V ring_value, V out) {
    store(values_of(head) + int64_t{row} * l_.value_padded + v0, ring_value);
    const int64_t at = int64_t{head} * p_.value_dim + v0;
    store_token(p_.activation, a_.out, token, at, out, lanes);
    if (position < write_from_) return;
    store_ring(p_.ring, a_.ring_value, row_.ring_slot, p_.grid.row_of(position), at, ring_value,
               lanes);
  }

  const Problem& p_;
  const Layout& l_;
  const StepArgs& a_;
  const Row& row_;
  // The unit's heads are [head_begin_, head_end_), all of key_head_; the caller's next unit of this
  // row is [head_end_, next_end_).
  const int head_begin_, head_end_, next_end_, key_head_;
  int64_t* saturated_;
  Scratch s_;  // this worker's; layout.h gives the shapes

  Ahead ahead_;                  // the next unit's part of the slot, prefetched during the products
  bool write_keys_now_ = false;  // a step's first unit of a key head writes its ring keys
  int64_t base_ = 0;             // grid point of the interval whose rows are in scratch
  int n_rows_ = 0;               // rows of the interval in scratch, in order from base_ on
  int64_t write_from_ = 0;       // tokens below this position are not written to the ring
  const void* state_ = nullptr;  // S at base_, in the slot or in scratch; null: the zero state
  const float* scale_ = nullptr;  // int8: its scales
  int state_head0_ = 0;           // head of the first element of state_ (0: the slot)
};

void run_unit(const Problem& problem, const Layout& layout, const StepArgs& args, const Row& row,
              int head_begin, int head_end, int next_end, bool sweep, char* scratch,
              int64_t* saturated) {
  Unit(problem, layout, args, row, head_begin, head_end, next_end, scratch, saturated).run(sweep);
}

void write_sweep_keys(const Problem& problem, const Layout& layout, const StepArgs& args,
                      const Row& row, int key_head, char* scratch) {
  Scratch s;
  s.place(problem, layout, scratch);
  const int64_t end = row.start + row.n_tokens;
  const int64_t last = problem.grid.checkpoint_of(end);
  const int64_t from = last > row.start ? last : row.start;
  int64_t counted_by_units = 0;
  for (int64_t t = from; t < end; ++t) {
    load_key(problem, layout, args, row.token + (t - row.start), key_head, s.operands,
             &counted_by_units);
    store_ring_key(problem, args, row, t, key_head, s.operands);
  }
}

void export_head(const Problem& problem, const void* state, const float* scale, float* canonical) {
  for (int v = 0; v < problem.value_dim; ++v) {
    for (int k = 0; k < problem.key_dim; ++k) {
      const int64_t element = (int64_t{v / kTile} * problem.key_dim + k) * kTile + v % kTile;
      float value = 0;
      switch (problem.checkpoint) {
        case DType::kF32:
          value = static_cast<const float*>(state)[element];
          break;
        case DType::kF16:
          value = half_to_float(static_cast<const uint16_t*>(state)[element]);
          break;
        case DType::kBF16:
          value = bf16_to_float(static_cast<const uint16_t*>(state)[element]);
          break;
        case DType::kI8:
          value = static_cast<const int8_t*>(state)[element] * scale[v];
          break;
      }
      canonical[int64_t{v} * problem.key_dim + k] = value;
    }
  }
}

// Rounds an fp32 tile [key_dim][16] to the checkpoint's dtype.
void store_tile(DType type, const float* tile, int key_dim, void* state, int64_t element,
                float* scale) {
  if (type == DType::kI8) {
    store_tile_i8(tile, key_dim, static_cast<int8_t*>(state) + element, scale);
    return;
  }
  int64_t uncounted = 0;
  for (int k = 0; k < key_dim; ++k) {
    const V s = load(tile + k * kTile);
    const int64_t at = element + int64_t{k} * kTile;
    if (type == DType::kF32) {
      store_counted<DType::kF32>(state, at, s, &uncounted);
    } else if (type == DType::kF16) {
      store_counted<DType::kF16>(state, at, s, &uncounted);
    } else {
      store_counted<DType::kBF16>(state, at, s, &uncounted);
    }
  }
}

void import_head(const Problem& problem, const Layout& layout, const float* canonical, void* state,
                 float* scale, char* scratch) {
  Scratch s;
  s.place(problem, layout, scratch);
  for (int tile = 0; tile < layout.n_tiles; ++tile) {
    for (int k = 0; k < problem.key_dim; ++k) {
      for (int i = 0; i < kTile; ++i) {
        const int v = tile * kTile + i;
        s.tile[k * kTile + i] =
            v < problem.value_dim ? canonical[int64_t{v} * problem.key_dim + k] : 0.0f;
      }
    }
    store_tile(problem.checkpoint, s.tile, problem.key_dim, state,
               int64_t{tile} * problem.key_dim * kTile,
               scale == nullptr ? nullptr : scale + tile * kTile);
  }
}

}  // namespace
}  // namespace replayssm::cpu::REPLAYSSM_ISA
