#include "runtime/executor.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "runtime/checksum.h"

namespace replayssm {
namespace {

int64_t conv_row_bytes(const Model& model, const RecurrentLayer& layer) {
  return layer.conv_row * dtype_bytes(model.activation());
}

int64_t conv_rows(const RecurrentLayer& layer) { return layer.conv->problem().width - 1; }

}  // namespace

int64_t Executor::conv_rows_bytes(const Model& model) {
  int64_t total = 0;
  for (const auto& layer : model.recurrent()) {
    total += conv_rows(layer) * conv_row_bytes(model, layer);
  }
  return total;
}

Executor::Executor(const Model& model, const ops::Context& context, const PoolSizes& sizes,
                   const ForwardLimits& limits)
    : model_(model),
      memory_(model.memory()),
      pool_(model, sizes),
      forward_(model, context, limits),
      conv_(static_cast<size_t>(sizes.checkpoint_slots * conv_rows_bytes(model))),
      logits_(static_cast<size_t>(limits.max_logits * model.spec().vocab)) {
  rows_.reserve(static_cast<size_t>(limits.max_rows));
  tokens_.reserve(static_cast<size_t>(limits.max_tokens));
  logit_tokens_.reserve(static_cast<size_t>(limits.max_logits));
}

int64_t Executor::bytes() const {
  return pool_.bytes() + static_cast<int64_t>(conv_.bytes()) + forward_.bytes() +
         static_cast<int64_t>(logits_.size() * sizeof(float));
}

// Raw inputs of positions [position - w + 1, position), those below 0 left out.
void Executor::copy_conv(int32_t ring_slot, int32_t slot, int64_t position, bool save) {
  std::byte* beside = conv_.as<std::byte>() + slot * conv_rows_bytes(model_);
  for (size_t i = 0; i < model_.recurrent().size(); ++i) {
    const RecurrentLayer& layer = model_.recurrent()[i];
    const int64_t row_bytes = conv_row_bytes(model_, layer);
    const int64_t ring_rows = layer.conv->problem().ring_rows;
    std::byte* ring = pool_.recurrent(i).conv.as<std::byte>() + ring_slot * ring_rows * row_bytes;
    for (int64_t t = position - conv_rows(layer); t < position; ++t, beside += row_bytes) {
      if (t < 0) continue;
      std::byte* const row = ring + t % ring_rows * row_bytes;
      std::memcpy(save ? beside : row, save ? row : beside, static_cast<size_t>(row_bytes));
    }
  }
}

void Executor::act(const Action& action) {
  switch (action.kind) {
    case Action::Kind::kCopyPage:
      return pool_.copy_page(action.a, action.b);
    case Action::Kind::kCopyRing:
      return pool_.copy_ring(action.a, action.b);
    case Action::Kind::kSaveConv:
      return copy_conv(action.a, action.b, action.position, /*save=*/true);
    case Action::Kind::kLoadConv:
      return copy_conv(action.b, action.a, action.position, /*save=*/false);
    case Action::Kind::kPoisonCheckpoint: {
      const int64_t bytes = conv_rows_bytes(model_);
      std::memset(conv_.as<std::byte>() + action.a * bytes, 0xff, static_cast<size_t>(bytes));
      return pool_.poison_checkpoint(action.a);
    }
    case Action::Kind::kPoisonRing:
      return pool_.poison_ring(action.a);
    case Action::Kind::kPoisonPage:
      return pool_.poison_page(action.a);
    case Action::Kind::kEvict:
      break;
  }
  REPLAYSSM_CHECK(false, "no action of memory");
}

int64_t Executor::n_logits(const StepRow& row, int64_t n_tokens) {
  if (row.phase == Phase::kStep || row.all_logits) return n_tokens;
  return row.ends_text ? 1 : 0;
}

const float* Executor::run(std::span<const StepRow> rows,
                           std::span<const std::vector<int32_t>> tokens) {
  rows_.clear();
  tokens_.clear();
  logit_tokens_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    ForwardRow row;
    row.row = rows[i].row;
    row.row.token = std::ssize(tokens_);
    row.row.n_tokens = static_cast<int32_t>(tokens[i].size());
    row.phase = rows[i].phase;
    row.pages = rows[i].pages.data();
    rows_.push_back(row);
    tokens_.insert(tokens_.end(), tokens[i].begin(), tokens[i].end());
    for (int64_t j = n_logits(rows[i], std::ssize(tokens[i])); j > 0; --j) {
      logit_tokens_.push_back(std::ssize(tokens_) - j);
    }
    traffic_.add(memory_, model_, row.row, row.phase == Phase::kSweep);
  }
  forward_.run({rows_, tokens_, logit_tokens_}, pool_, logits_.data());
  for (const StepRow& row : rows) {
    if (!row.save_conv) continue;
    copy_conv(row.row.ring_slot, row.row.write_slot, row.row.start + row.row.n_tokens, true);
  }
  return logits_.data();
}

int64_t Executor::snapshot_bytes(int64_t n_pages) const {
  return memory_.checkpoint_slot + conv_rows_bytes(model_) + n_pages * memory_.kv_page;
}

namespace {

// Calls visit(memory, bytes) for each part of a snapshot, in its order.
template <typename Pool, typename Visit>
void for_parts(Pool& pool, const Model& model, std::byte* conv, int32_t slot,
               std::span<const int32_t> pages, const Visit& visit) {
  const int64_t slots = pool.sizes().checkpoint_slots;
  for (size_t i = 0; i < model.recurrent().size(); ++i) {
    RecurrentPool& layer = pool.recurrent(i);
    for (Buffer* buffer : {&layer.checkpoint, &layer.scale}) {
      const int64_t each = static_cast<int64_t>(buffer->bytes()) / slots;
      if (each > 0) visit(buffer->template as<std::byte>() + slot * each, each);
    }
  }
  const int64_t conv_bytes = Executor::conv_rows_bytes(model);
  visit(conv + slot * conv_bytes, conv_bytes);
  for (size_t i = 0; i < model.attention().size(); ++i) {
    const ops::KvPool kv = pool.kv(i);
    for (const int32_t page : pages) {
      visit(static_cast<std::byte*>(kv.data) + page * kv.page_stride_bytes, kv.page_stride_bytes);
    }
  }
}

}  // namespace

void Executor::read_snapshot(int32_t slot, std::span<const int32_t> pages,
                             std::span<std::byte> out) const {
  REPLAYSSM_CHECK(std::ssize(out) == snapshot_bytes(std::ssize(pages)), out.size(), " bytes");
  std::byte* at = out.data();
  for_parts(const_cast<StatePool&>(pool_), model_, const_cast<std::byte*>(conv_.as<std::byte>()),
            slot, pages, [&](const std::byte* part, int64_t n) {
              std::memcpy(at, part, static_cast<size_t>(n));
              at += n;
            });
}

void Executor::write_snapshot(int32_t slot, std::span<const int32_t> pages,
                              std::span<const std::byte> bytes) {
  REPLAYSSM_CHECK(std::ssize(bytes) == snapshot_bytes(std::ssize(pages)), bytes.size(), " bytes");
  const std::byte* at = bytes.data();
  for_parts(pool_, model_, conv_.as<std::byte>(), slot, pages, [&](std::byte* part, int64_t n) {
    std::memcpy(part, at, static_cast<size_t>(n));
    at += n;
  });
}

uint64_t Executor::state_hash(const SequenceState& state, std::span<const int32_t> pages,
                              int32_t spare_slot) {
  Checksum sum;
  const Grid grid = model_.grid();
  const int64_t at = grid.checkpoint_of(state.n);
  int32_t slot = state.checkpoint_slot;
  if (grid.fold_pending(state.n, state.c)) {
    ForwardRow fold;
    fold.row = {state.n, state.c, state.n, 0, 0, std::max(slot, 0), spare_slot, state.ring_slot};
    forward_.run({{&fold, 1}, {}, {}}, pool_, logits_.data());
    slot = spare_slot;
  }
  const auto add_row = [&](const Buffer& buffer, int32_t slots, int64_t rows, int64_t t) {
    const int64_t row = static_cast<int64_t>(buffer.bytes()) / slots / rows;
    sum.add(buffer.as<std::byte>() + (state.ring_slot * rows + t % rows) * row,
            static_cast<size_t>(row));
  };
  sum.add(&state.n, sizeof state.n);
  for (size_t i = 0; i < model_.recurrent().size(); ++i) {
    const RecurrentLayer& layer = model_.recurrent()[i];
    const RecurrentPool& pool = pool_.recurrent(i);
    if (at > 0) {
      const auto& problem = layer.plan->problem();
      const int64_t each =
          static_cast<int64_t>(pool.checkpoint.bytes()) / pool_.sizes().checkpoint_slots;
      std::vector<float> canonical(static_cast<size_t>(problem.n_heads) *
                                   static_cast<size_t>(problem.value_dim * problem.key_dim));
      layer.plan->export_checkpoint(pool.checkpoint.as<std::byte>() + slot * each,
                                    pool.scale.as<float>() + slot * layer.scale_elements,
                                    canonical.data());
      sum.add(canonical.data(), canonical.size() * sizeof(float));
    }
    const int32_t rings = pool_.sizes().ring_slots;
    for (int64_t t = at; t < state.n; ++t) {
      add_row(pool.ring_value, rings, grid.ring_rows, t);
      add_row(pool.ring_key, rings, grid.ring_rows, t);
      add_row(pool.ring_gate, rings, grid.ring_rows, t);
    }
    for (int64_t t = std::max<int64_t>(0, state.n - conv_rows(layer)); t < state.n; ++t) {
      add_row(pool.conv, rings, layer.conv->problem().ring_rows, t);
    }
  }
  for (size_t i = 0; i < model_.attention().size(); ++i) {
    const ops::KvShape& shape = model_.attention()[i].kv;
    std::vector<float> k(static_cast<size_t>(shape.head_dim)), v = k;
    for (int64_t t = 0; t < state.n; ++t) {
      for (int32_t head = 0; head < shape.n_kv_heads; ++head) {
        ops::kv_read(shape, pool_.kv(i), pages.data(), t, head, k.data(), v.data());
        sum.add(k.data(), k.size() * sizeof(float));
        sum.add(v.data(), v.size() * sizeof(float));
      }
    }
  }
  return sum.value();
}

}  // namespace replayssm
