#include "runtime/cuda/pass_block.h"

#include "ops/attention.h"

namespace replayssm {

PassArrays::PassArrays(Carver& carver, const PassShape& shape)
    : rows(carver.take<Row>(shape.n_rows())),
      start(carver.take<int64_t>(shape.n_rows())),
      first_token(carver.take<int64_t>(shape.n_rows())),
      row_tokens(carver.take<int32_t>(shape.n_rows())),
      row_logits(carver.take<int32_t>(shape.n_rows())),
      first_logit(carver.take<int64_t>(shape.n_rows())),
      tokens(carver.take<int32_t>(shape.n_tokens)),
      positions(carver.take<int64_t>(shape.n_tokens)),
      logit_tokens(carver.take<int64_t>(shape.n_logits)),
      draw_params(carver.take<ops::SamplerParams>(shape.n_logits)),
      draw_positions(carver.take<int64_t>(shape.n_logits)),
      pages(carver.take<int32_t>(shape.n_rows() * shape.n_pages)) {}

void PassArrays::set_row(int64_t i, const Row& row) const {
  rows[i] = row;
  start[i] = row.start;
  first_token[i] = row.token;
  row_tokens[i] = row.n_tokens;
  row_logits[i] = 0;
  first_logit[i] = 0;
  for (int32_t t = 0; t < row.n_tokens; ++t) positions[row.token + t] = row.start + t;
}

OutcomeArrays::OutcomeArrays(Carver& carver, const PassShape& shape)
    : next(carver.take<int32_t>(shape.n_rows())),
      n_accepted(carver.take<int32_t>(shape.n_rows())),
      tokens(carver.take<int32_t>(shape.n_logits)),
      status(carver.take<ops::SampleStatus>(shape.n_logits)) {}

PassCuda pass_of(const PassShape& shape, const PassArrays& device) {
  PassCuda out;
  out.n_tokens = shape.n_tokens;
  out.n_logits = shape.n_logits;
  out.n_step = shape.n_step;
  out.n_sweep = shape.n_sweep;
  out.single = shape.single;
  out.longest = shape.longest;
  out.max_positions = shape.n_pages * ops::kKvPage;
  out.rows = device.rows;
  out.tokens = device.tokens;
  out.positions = device.positions;
  out.start = device.start;
  out.row_tokens = device.row_tokens;
  out.first_token = device.first_token;
  out.pages = device.pages;
  out.pages_stride = shape.n_pages;
  out.logit_tokens = device.logit_tokens;
  return out;
}

}  // namespace replayssm
