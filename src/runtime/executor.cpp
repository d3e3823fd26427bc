#include "runtime/executor.h"

#include <algorithm>

#include "core/error.h"
#include "runtime/checksum.h"

namespace replayssm {
namespace {

constexpr int64_t kReadBytes = int64_t{16} << 20;

PoolSizes with_snapshots(PoolSizes sizes) {
  sizes.snapshots = true;
  return sizes;
}

}  // namespace

void act(Backend& backend, const Action& action) {
  const StateParts& parts = backend.parts();
  switch (action.kind) {
    case Action::Kind::kCopyPage:
      return backend.copy(parts.page(action.a), parts.page(action.b));
    case Action::Kind::kCopyRing:
      return backend.copy(parts.ring(action.a), parts.ring(action.b));
    case Action::Kind::kCopyCheckpoint:
      return backend.copy(parts.checkpoint(action.a), parts.checkpoint(action.b));
    case Action::Kind::kSaveConv:
      return backend.copy(parts.conv_rows(action.a, action.position),
                          parts.conv_rows_beside(action.b, action.position));
    case Action::Kind::kLoadConv:
      return backend.copy(parts.conv_rows_beside(action.a, action.position),
                          parts.conv_rows(action.b, action.position));
    case Action::Kind::kPoisonCheckpoint:
      return backend.poison(parts.checkpoint(action.a));
    case Action::Kind::kPoisonRing:
      return backend.poison(parts.ring(action.a));
    case Action::Kind::kPoisonPage:
      return backend.poison(parts.page(action.a));
    case Action::Kind::kEvict:
      break;
  }
  REPLAYSSM_CHECK(false, "no action of memory");
}

Executor::Executor(const Model& model, const ModelMemory& memory, const Device& device,
                   PoolSizes sizes, const ForwardLimits& limits)
    : model_(model),
      memory_(memory),
      backend_(device.make(model, with_snapshots(sizes), limits)),
      windows_(limits) {}

int64_t Executor::n_logits(const StepRow& row, int64_t n_tokens) {
  if (row.phase == Phase::kStep || row.all_logits) return n_tokens;
  return row.ends_text ? 1 : 0;
}

void Executor::launch(std::span<const StepRow> rows, std::span<const std::vector<int32_t>> tokens,
                      std::span<const DrawRow> draws) {
  windows_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const StepRow& row = rows[i];
    const Row& packed = windows_.add(row.row, row.phase, row.pages.data(), tokens[i],
                                     n_logits(row, std::ssize(tokens[i])));
    traffic_.add(memory_, model_, packed, row.phase == Phase::kSweep);
  }
  backend_->launch(windows_.batch(), draws);
  for (const StepRow& row : rows) {
    if (!row.save_conv) continue;
    const Row& r = row.row;
    act({Action::Kind::kSaveConv, r.ring_slot, r.write_slot, r.start + r.n_tokens, {}});
  }
}

int64_t Executor::snapshot_bytes(int64_t n_pages) const {
  return memory_.checkpoint_slot + memory_.conv_rows + n_pages * memory_.kv_page;
}

void Executor::read_snapshot(int32_t slot, std::span<const int32_t> pages,
                             std::span<std::byte> out) const {
  REPLAYSSM_CHECK(std::ssize(out) == snapshot_bytes(std::ssize(pages)), out.size(), " bytes");
  backend_->read(backend_->parts().snapshot(slot, pages), out.data());
}

void Executor::write_snapshot(int32_t slot, std::span<const int32_t> pages,
                              std::span<const std::byte> bytes) {
  REPLAYSSM_CHECK(std::ssize(bytes) == snapshot_bytes(std::ssize(pages)), bytes.size(), " bytes");
  backend_->write(bytes.data(), backend_->parts().snapshot(slot, pages));
}

void Executor::add_embedding(Checksum& sum) const {
  const MemorySpan table = backend_->embedding();
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kReadBytes, table.bytes)));
  for (int64_t at = 0; at < table.bytes; at += kReadBytes) {
    const MemorySpan part{table.data + at, std::min(kReadBytes, table.bytes - at)};
    backend_->read({&part, 1}, piece.data());
    sum.add(piece.data(), static_cast<size_t>(part.bytes));
  }
}

uint64_t Executor::state_hash(const SequenceState& state, std::span<const int32_t> pages,
                              int32_t spare_slot) {
  Checksum sum;
  const Grid grid = model_.grid();
  const int64_t at = grid.checkpoint_of(state.n);
  int32_t slot = state.checkpoint_slot;
  if (grid.fold_pending(state.n, state.c)) {
    backend_->fold(
        {state.n, state.c, state.n, 0, 0, std::max(slot, 0), spare_slot, state.ring_slot});
    slot = spare_slot;
  }
  sum.add(&state.n, sizeof state.n);
  const auto add_floats = [&sum](const std::vector<float>& values, size_t n) {
    sum.add(values.data(), n * sizeof(float));
  };
  std::vector<MemorySpan> rows;
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < model_.recurrent().size(); ++i) {
    const StateParts::Layer& layer = backend_->parts().layers[i];
    if (at > 0) {
      const auto values = backend_->checkpoint_values(i, slot);
      add_floats(values, values.size());
    }
    rows.clear();
    for (int64_t t = at; t < state.n; ++t) {
      for (const auto* ring : {&layer.ring_value, &layer.ring_key, &layer.ring_gate}) {
        rows.push_back(layer.ring_row(*ring, state.ring_slot, t));
      }
    }
    layer.add_conv_rows(state.ring_slot, state.n, rows);
    int64_t n_bytes = 0;
    for (const MemorySpan& row : rows) n_bytes += row.bytes;
    bytes.resize(static_cast<size_t>(n_bytes));
    backend_->read(rows, bytes.data());
    sum.add(bytes.data(), bytes.size());
  }
  for (size_t i = 0; i < model_.n_target_attention(); ++i) {
    for (int64_t t = 0; t < state.n; t += ops::kKvPage) {
      const auto values = backend_->page_values(i, pages[static_cast<size_t>(t / ops::kKvPage)]);
      const size_t each = values.size() / ops::kKvPage;
      add_floats(values, each * static_cast<size_t>(std::min<int64_t>(ops::kKvPage, state.n - t)));
    }
  }
  return sum.value();
}

}  // namespace replayssm
