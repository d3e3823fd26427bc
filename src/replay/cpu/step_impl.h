// One unit of a step or sweep: some heads of one key head of one row. Each instruction set's
// translation unit includes this once; nothing here calls out-of-line templates of the standard
// library, whose instances would be shared between the sets.
#pragma once

#include "replay/cpu/rows_impl.h"
#include "replay/cpu/state_impl.h"

namespace replayssm::cpu::REPLAYSSM_ISA {
namespace {

class Unit {
 public:
  Unit(const Problem& problem, const Layout& layout, const StepArgs& args, const Row& row,
       int head_begin, int head_end, char* scratch, int64_t* saturated)
      : p_(problem),
        l_(layout),
        a_(args),
        row_(row),
        head_begin_(head_begin),
        head_end_(head_end),
        key_head_(head_begin / layout.heads_per_key),
        saturated_(saturated) {
    s_.place(problem, layout, scratch);
  }

  void run(bool sweep) {
    const int interval = p_.grid.interval;
    const int64_t end = row_.start + row_.n_tokens;
    use_slot(row_.read_slot, row_.c == 0);
    if (p_.grid.fold_pending(row_.n, row_.c)) {
      base_ = row_.c;
      load_rows(row_.c, row_.c + interval);
      fold(/*to_slot=*/true);
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
      fold(/*to_slot=*/sweep && end < next + interval);
      base_ = next;
      n_rows_ = 0;
      if (row_.start > base_) load_rows(base_, row_.start);
    }
  }

 private:
  bool is_kda() const { return p_.family == Family::kKda; }
  bool is_mamba() const { return p_.family == Family::kMamba2; }

  // ---- the state that this unit reads

  void use_slot(int slot, bool zero_state) {
    state_ = nullptr;
    if (zero_state) return;
    state_ = static_cast<const char*>(a_.checkpoint) +
             slot * a_.checkpoint_slot_stride * dtype_bytes(p_.checkpoint);
    state_head0_ = 0;
    scale_ = a_.scale == nullptr ? s_.scale : a_.scale + slot * a_.scale_slot_stride;
  }

  int64_t head_element(int head) const { return (head - state_head0_) * l_.head_elements; }
  const float* head_scale(int head) const {
    return scale_ + int64_t{head - state_head0_} * l_.value_padded;
  }

  // Folds all rows of the interval at base_ into the checkpoint's dtype, to the write slot or to
  // scratch, and reads from there afterwards.
  void fold(bool to_slot) {
    const int b = p_.grid.interval;
    char* to = static_cast<char*>(s_.state);
    float* to_scale = s_.scale;
    int to_head0 = head_begin_;
    if (to_slot) {
      to = static_cast<char*>(a_.checkpoint) +
           row_.write_slot * a_.checkpoint_slot_stride * dtype_bytes(p_.checkpoint);
      if (a_.scale != nullptr) to_scale = a_.scale + row_.write_slot * a_.scale_slot_stride;
      to_head0 = 0;
    }
    if (!is_kda()) transpose_keys(s_, p_, l_);
    for (int head = head_begin_; head < head_end_; ++head) {
      float weight[kMaxInterval];
      fold_weights(head, weight);
      const float* values = values_of(head);
      for (int tile = 0; tile < l_.n_tiles; ++tile) {
        for (int j = 0; j < b; ++j) {
          const V u = load(values + int64_t{j} * l_.value_padded + tile * kTile);
          store(s_.weighted + j * kTile, mul(set1(weight[j]), u));
        }
        const int64_t in_head = int64_t{tile} * kTile * p_.key_dim;
        fold_tile(p_.checkpoint, state_, head_element(head) + in_head,
                  state_ == nullptr ? nullptr : head_scale(head) + tile * kTile, p_.key_dim, b,
                  s_.state_decay, s_.keys_across, s_.weighted, s_.tile);
        store_tile(
            p_.checkpoint, s_.tile, p_.key_dim, to, (head - to_head0) * l_.head_elements + in_head,
            to_scale + int64_t{head - to_head0} * l_.value_padded + tile * kTile, saturated_);
      }
    }
    state_ = to;
    scale_ = to_scale;
    state_head0_ = to_head0;
  }

  // weight[j] multiplies ring value j; state_decay the old state; KDA's keys carry their own decay.
  void fold_weights(int head, float* weight) {
    const int b = p_.grid.interval;
    if (is_kda()) {
      const float* last = s_.log_decay + int64_t{b - 1} * l_.key_padded;
      for (int k = 0; k < p_.key_dim; k += kLanes) {
        const int n = lanes_left(k, p_.key_dim);
        store_n(s_.state_decay + k, exp(load(last + k)), n);
        for (int j = 0; j < b; ++j) {
          const float* g = s_.log_decay + int64_t{j} * l_.key_padded;
          float lanes[kLanes];
          store(lanes, mul(exp(sub(load(last + k), load(g + k))),
                           load(s_.keys + int64_t{j} * l_.key_padded + k)));
          for (int i = 0; i < n; ++i) s_.keys_across[int64_t{k + i} * b + j] = lanes[i];
        }
      }
      for (int j = 0; j < b; ++j) weight[j] = 1.0f;
      return;
    }
    const float* g = log_decay_of(head);
    const V last = set1(g[b - 1]);
    for (int j = 0; j < b; j += kLanes) {
      const int n = lanes_left(j, b);
      V w = exp(sub(last, load_n(g + j, n)));
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
  float* gates_of(int head) const {
    return s_.gates + int64_t{head - head_begin_} * p_.grid.interval;
  }

  // Appends one token's log decay (Mamba-2: dt) as row j, as a prefix sum.
  void append_gate(int head, int j, float gate) {
    float* g = log_decay_of(head);
    if (is_mamba()) {
      gates_of(head)[j] = gate;
      gate = -exp1(a_.a_log[head]) * gate;
    }
    g[j] = j == 0 ? gate : g[j - 1] + gate;
  }
  void append_gates_kda(int j, const float* gates) {
    float* g = s_.log_decay + int64_t{j} * l_.key_padded;
    for (int k = 0; k < p_.key_dim; k += kLanes) {
      V v = load_n(gates + k, lanes_left(k, p_.key_dim));
      if (j > 0) v = add(load(g - l_.key_padded + k), v);
      store(g + k, v);
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
    for (int t = 0; t < n; ++t) {
      load_key(p_, l_, a_, token + t, key_head_, s_.keys + int64_t{n_rows_ + t} * l_.key_padded,
               count);
      load_query(p_, l_, a_, token + t, key_head_, s_.queries + int64_t{t} * l_.key_padded);
    }
    const int per_token = is_mamba() ? 1 : 2;
    if (!is_kda()) {
      for (int t = 0; t < n; ++t) {
        const float* key = s_.keys + int64_t{n_rows_ + t} * l_.key_padded;
        const float* query = s_.queries + int64_t{t} * l_.key_padded;
        if (!is_mamba()) pack_operand(key, 2 * t, 2 * n, p_.key_dim, s_.packed);
        pack_operand(query, per_token * t + per_token - 1, per_token * n, p_.key_dim, s_.packed);
        token_dots(t, key, query);
      }
    }
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
                 head_scale(head), l_, p_.key_dim, s_.packed, per_token * n, s_.products);
      } else {
        for (int64_t i = 0; i < int64_t{per_token} * n * l_.value_padded; ++i) s_.products[i] = 0;
      }
      if (is_mamba()) {
        outputs_mamba(head, position, token, n);
      } else {
        outputs_delta(head, position, token, n);
      }
    }
    n_rows_ += n;
  }

  void token_dots(int t, const float* key, const float* query) {
    const int b = p_.grid.interval;
    for (int j = 0; j <= n_rows_ + t; ++j) {
      const float* ring_key = s_.keys + int64_t{j} * l_.key_padded;
      if (!is_mamba()) s_.dots_key[t * b + j] = dot(ring_key, key, l_.key_padded);
      s_.dots_query[t * b + j] = dot(ring_key, query, l_.key_padded);
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
      s_.decay[t] = exp1(g[last]);
      for (int j = 0; j <= last; j += kLanes) {
        const int lanes = lanes_left(j, last + 1);
        V w = exp(sub(set1(g[last]), load_n(g + j, lanes)));
        if (is_mamba()) {
          w = mul(load_n(gates_of(head) + j, lanes), w);
        } else {
          store_n(s_.weights_key + t * b + j, mul(w, load_n(s_.dots_key + t * b + j, lanes)),
                  lanes);
        }
        store_n(s_.weights_query + t * b + j, mul(w, load_n(s_.dots_query + t * b + j, lanes)),
                lanes);
      }
    }
  }

  // KDA: the decay is inside the dot, and inside the operands of the state product.
  void weights_kda(int n) {
    const int b = p_.grid.interval;
    for (int t = 0; t < n; ++t) {
      const int last = n_rows_ + t;
      const float* key = s_.keys + int64_t{last} * l_.key_padded;
      const float* query = s_.queries + int64_t{t} * l_.key_padded;
      const float* g = s_.log_decay + int64_t{last} * l_.key_padded;
      for (int j = 0; j <= last; ++j) {
        const float* ring_key = s_.keys + int64_t{j} * l_.key_padded;
        const float* ring_g = s_.log_decay + int64_t{j} * l_.key_padded;
        V sum_key = zero();
        V sum_query = zero();
        for (int k = 0; k < l_.key_padded; k += kLanes) {
          const V decayed = mul(load(ring_key + k), exp(sub(load(g + k), load(ring_g + k))));
          sum_key = fma(decayed, load(key + k), sum_key);
          sum_query = fma(decayed, load(query + k), sum_query);
        }
        s_.weights_key[t * b + j] = reduce_add(sum_key);
        s_.weights_query[t * b + j] = reduce_add(sum_query);
      }
      float operand[2][kMaxKeyDim];
      for (int k = 0; k < l_.key_padded; k += kLanes) {
        const V decay = exp(load(g + k));
        store(operand[0] + k, mul(decay, load(key + k)));
        store(operand[1] + k, mul(decay, load(query + k)));
      }
      pack_operand(operand[0], 2 * t, 2 * n, p_.key_dim, s_.packed);
      pack_operand(operand[1], 2 * t + 1, 2 * n, p_.key_dim, s_.packed);
      s_.decay[t] = 1.0f;
    }
  }

  // GDN, KDA: forward substitution over the window; u_t of sixteen rows at a time.
  void outputs_delta(int head, int64_t position, int64_t token, int n) {
    const int b = p_.grid.interval;
    float* values = values_of(head);
    for (int v0 = 0; v0 < p_.value_dim; v0 += kTile) {
      const int lanes = lanes_left(v0, p_.value_dim);
      for (int t = 0; t < n; ++t) {
        const int row = n_rows_ + t;
        const V decay = set1(s_.decay[t]);
        const float* product = s_.products + int64_t{2} * t * l_.value_padded + v0;
        V read_key = mul(decay, load(product));
        V out = mul(decay, load(product + l_.value_padded));
        const float* weight_key = s_.weights_key + t * b;
        const float* weight_query = s_.weights_query + t * b;
        for (int j = 0; j < row; ++j) {
          const V u = load(values + int64_t{j} * l_.value_padded + v0);
          read_key = fma(set1(weight_key[j]), u, read_key);
          out = fma(set1(weight_query[j]), u, out);
        }
        const V v = load_token(p_.activation, a_.value, token + t,
                               int64_t{head} * p_.value_dim + v0, lanes);
        V u = mul(set1(s_.beta[t]), sub(v, read_key));
        u = round_to_ring(p_.ring, u, saturated_);
        store(values + int64_t{row} * l_.value_padded + v0, u);
        out = fma(set1(weight_query[row]), u, out);
        store_token(p_.activation, a_.out, token + t, int64_t{head} * p_.value_dim + v0, out,
                    lanes);
        write_value(head, position + t, v0, u, lanes);
      }
    }
  }

  void outputs_mamba(int head, int64_t position, int64_t token, int n) {
    const int b = p_.grid.interval;
    float* values = values_of(head);
    for (int v0 = 0; v0 < p_.value_dim; v0 += kTile) {
      const int lanes = lanes_left(v0, p_.value_dim);
      for (int t = 0; t < n; ++t) {
        const int row = n_rows_ + t;
        const V x = load_token(p_.activation, a_.value, token + t,
                               int64_t{head} * p_.value_dim + v0, lanes);
        const V rounded = round_to_ring(p_.ring, x, saturated_);
        store(values + int64_t{row} * l_.value_padded + v0, rounded);
        V out = mul(set1(s_.decay[t]), load(s_.products + int64_t{t} * l_.value_padded + v0));
        const float* weight = s_.weights_query + t * b;
        for (int j = 0; j <= row; ++j) {
          out = fma(set1(weight[j]), load(values + int64_t{j} * l_.value_padded + v0), out);
        }
        out = fma(set1(a_.skip[head]), x, out);
        store_token(p_.activation, a_.out, token + t, int64_t{head} * p_.value_dim + v0, out,
                    lanes);
        write_value(head, position + t, v0, rounded, lanes);
      }
    }
  }

  void write_value(int head, int64_t t, int v0, V rounded, int lanes) {
    if (t < write_from_) return;
    store_ring(p_.ring, a_.ring_value, row_.ring_slot, p_.grid.row_of(t),
               int64_t{head} * p_.value_dim + v0, rounded, lanes);
  }

  const Problem& p_;
  const Layout& l_;
  const StepArgs& a_;
  const Row& row_;
  const int head_begin_, head_end_, key_head_;
  int64_t* saturated_;
  Scratch s_;

  int64_t base_ = 0;             // the grid point whose interval the rows belong to
  int n_rows_ = 0;               // rows of the interval in scratch, in order from base_
  int64_t write_from_ = 0;       // positions below stay out of the ring
  const void* state_ = nullptr;  // S at base_; null is the zero state
  const float* scale_ = nullptr;
  int state_head0_ = 0;  // the head at state_
};

void run_unit(const Problem& problem, const Layout& layout, const StepArgs& args, const Row& row,
              int head_begin, int head_end, bool sweep, char* scratch, int64_t* saturated) {
  Unit(problem, layout, args, row, head_begin, head_end, scratch, saturated).run(sweep);
}

void write_keys(const Problem& problem, const Layout& layout, const StepArgs& args, const Row& row,
                int key_head, bool sweep, char* scratch, int64_t* saturated) {
  Scratch s;
  s.place(problem, layout, scratch);
  const int64_t end = row.start + row.n_tokens;
  int64_t from = row.start;
  if (sweep && problem.grid.checkpoint_of(end) > from) from = problem.grid.checkpoint_of(end);
  for (int64_t t = from; t < end; ++t) {
    load_key(problem, layout, args, row.token + (t - row.start), key_head, s.queries, saturated);
    for (int k = 0; k < problem.key_dim; k += kLanes) {
      store_ring(problem.ring, args.ring_key, row.ring_slot, problem.grid.row_of(t),
                 int64_t{key_head} * problem.key_dim + k, load(s.queries + k),
                 lanes_left(k, problem.key_dim));
    }
  }
}

void export_head(const Problem& problem, const Layout& layout, const void* state,
                 const float* scale, float* canonical) {
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
  (void)layout;
}

void import_head(const Problem& problem, const Layout& layout, const float* canonical, void* state,
                 float* scale, char* scratch) {
  Scratch s;
  s.place(problem, layout, scratch);
  int64_t saturated = 0;
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
               scale == nullptr ? s.scale : scale + tile * kTile, &saturated);
  }
}

}  // namespace
}  // namespace replayssm::cpu::REPLAYSSM_ISA
