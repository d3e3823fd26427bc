#include "runtime/cuda/pass_block.h"

#include "ops/attention.h"

namespace replayssm {

WindowArrays::WindowArrays(Carver& carver, const PassShape& shape)
    : rows(carver.take<Row>(shape.n_rows())),
      start(carver.take<int64_t>(shape.n_rows())),
      first_token(carver.take<int64_t>(shape.n_rows())),
      row_tokens(carver.take<int32_t>(shape.n_rows())),
      tokens(carver.take<int32_t>(shape.n_tokens)),
      positions(carver.take<int64_t>(shape.n_tokens)) {}

void WindowArrays::set_row(int64_t i, const Row& row) const {
  rows[i] = row;
  start[i] = row.start;
  first_token[i] = row.token;
  row_tokens[i] = row.n_tokens;
  for (int32_t t = 0; t < row.n_tokens; ++t) positions[row.token + t] = row.start + t;
}

PassCuda pass_of(const PassShape& shape, const WindowArrays& device, const int32_t* pages) {
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
  out.pages = pages;
  out.pages_stride = shape.n_pages;
  return out;
}

}  // namespace replayssm
