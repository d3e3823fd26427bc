#include "runtime/traffic.h"

namespace replayssm {

void StateTraffic::add(const ModelMemory& memory, const Model& model, const Row& row,
                       bool prefill) {
  const int64_t state = memory.checkpoint_slot;
  const int64_t tokens = row.n_tokens;
  const Grid& grid = model.grid();
  const bool folds = grid.fold_pending(row.n, row.c);
  const int64_t at = grid.checkpoint_of(row.n);
  const int64_t end = row.start + tokens;
  read += row.c > 0 ? state : 0;
  read += memory.ring_token * (row.start - at + (folds ? grid.interval : 0));
  const int64_t kept =
      prefill && grid.checkpoint_of(end) > row.start ? end - grid.checkpoint_of(end) : tokens;
  written += memory.ring_token * kept;
  const bool sweep_folds = prefill && grid.checkpoint_of(end) > at;
  written += folds || sweep_folds ? state : 0;
  if (!prefill) plain += state * (1 + tokens);
}

}  // namespace replayssm
