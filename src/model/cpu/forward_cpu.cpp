#include "model/cpu/forward_cpu.h"

#include <cstring>

#include "core/error.h"

namespace replayssm {
namespace {

void check_slot(int32_t slot, int32_t slots, const char* what) {
  REPLAYSSM_CHECK(slot >= 0 && slot < slots, what, " slot ", slot, " of ", slots);
}

void check_row(const ForwardRow& r, const Model& model, const PoolSizes& sizes, int64_t n_tokens) {
  const Row& row = r.row;
  if (row.read_slot < 0) return;
  check_slot(row.read_slot, sizes.checkpoint_slots, "read");
  check_slot(row.write_slot, sizes.checkpoint_slots, "write");
  check_slot(row.ring_slot, sizes.ring_slots, "ring");
  REPLAYSSM_CHECK(row.n_tokens >= 0 && row.token >= 0 && row.token <= n_tokens - row.n_tokens,
                  "window of ", row.n_tokens, " at token ", row.token, " of ", n_tokens);
  REPLAYSSM_CHECK(row.start >= row.n && row.n >= row.c && row.c >= 0, "start ", row.start, " n ",
                  row.n, " c ", row.c);
  if (r.phase == Phase::kSweep) {
    REPLAYSSM_CHECK(row.start == row.n, "a sweep from ", row.start, " with n ", row.n);
  } else {
    REPLAYSSM_CHECK(row.start + row.n_tokens - row.n <= model.options().max_window, "a step to ",
                    row.start + row.n_tokens, " with n ", row.n);
  }
}

}  // namespace

void check_batch(const ForwardBatch& batch, const Model& model, const ForwardLimits& limits,
                 const PoolSizes& sizes) {
  const int64_t n_tokens = std::ssize(batch.tokens);
  REPLAYSSM_CHECK(
      n_tokens <= limits.max_tokens && std::ssize(batch.logit_tokens) <= limits.max_logits &&
          std::ssize(batch.rows) <= limits.max_rows,
      n_tokens, " tokens, ", batch.logit_tokens.size(), " logits, ", batch.rows.size(), " rows");
  for (const ForwardRow& row : batch.rows) check_row(row, model, sizes, n_tokens);
  for (const int32_t id : batch.tokens) {
    REPLAYSSM_CHECK(id >= 0 && id < model.spec().vocab, "token ", id, " of ", model.spec().vocab);
  }
  for (const int64_t token : batch.logit_tokens) {
    REPLAYSSM_CHECK(token >= 0 && token < n_tokens, "logits of token ", token, " of ", n_tokens);
  }
}

void ForwardCpu::draft(std::span<const DraftRow> rows, StatePool& pool) {
  const Model& model = engine_.model;
  const auto n = static_cast<int64_t>(rows.size());
  REPLAYSSM_CHECK(model.spec().mtp && n <= std::min(limits_.max_rows, limits_.max_logits) &&
                      n <= limits_.max_tokens,
                  n, " drafts");
  rows_.take(rows);
  const int64_t hidden = model.spec().hidden;
  const ops::Matrix previous{scratch_.normed, model.activation(), n, hidden, hidden};
  const ops::Matrix last{scratch_.drafted, model.activation(), limits_.max_rows, hidden, hidden};
  for (int64_t i = 0; i < n; ++i) {
    const DraftRow& row = rows[static_cast<size_t>(i)];
    check_slot(row.ring_slot, pool.sizes.ring_slots, "ring");
    REPLAYSSM_CHECK(row.token >= 0 && row.token < model.spec().vocab && row.position >= 1 &&
                        row.from < last.rows,
                    "draft of token ", row.token, " at ", row.position, " from ", row.from);
    const void* from =
        row.from >= 0 ? last.at(row.from) : pool.parts.hidden(row.ring_slot, row.position - 1).data;
    std::memcpy(previous.at(i), from, static_cast<size_t>(hidden * dtype_bytes(last.dtype)));
  }
  const ForwardBatch batch{{}, rows_.tokens, {}};
  OpsCpu ops(engine_, batch, rows_, pool);
  run_mtp_draft(ops, model.spec(), weights_, model.n_target_attention(), scratch_);
}

}  // namespace replayssm
