#include "model/state.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "core/error.h"

namespace replayssm {
namespace {

// All bits set is a NaN in fp32, fp16 and bf16.
constexpr int kNanByte = 0xff;

std::vector<MemorySpan> spans_at(std::initializer_list<const StateParts::Slots*> parts,
                                 int32_t slot) {
  std::vector<MemorySpan> out;
  for (const StateParts::Slots* part : parts) {
    if (part->bytes > 0) out.push_back(part->at(slot));
  }
  return out;
}

void append(std::vector<MemorySpan>& to, const std::vector<MemorySpan>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

void copy_spans(std::span<const MemorySpan> from, std::span<const MemorySpan> to) {
  for (size_t i = 0; i < from.size(); ++i) {
    std::memmove(to[i].data, from[i].data, static_cast<size_t>(from[i].bytes));
  }
}

void fill_with_nan(std::span<const MemorySpan> spans) {
  for (const MemorySpan& span : spans) {
    std::memset(span.data, kNanByte, static_cast<size_t>(span.bytes));
  }
}

MemorySpan StateParts::Layer::ring_row(const Slots& ring, int32_t slot, int64_t position) const {
  const int64_t row = ring.bytes / ring_rows;
  return {ring.at(slot).data + position % ring_rows * row, row};
}

MemorySpan StateParts::Layer::conv_row(int32_t slot, int64_t position) const {
  const int64_t row = conv.bytes / conv_ring_rows;
  return {conv.at(slot).data + position % conv_ring_rows * row, row};
}

void StateParts::Layer::add_conv_rows(int32_t slot, int64_t position,
                                      std::vector<MemorySpan>& to) const {
  for (int64_t t = std::max<int64_t>(0, position - conv_width + 1); t < position; ++t) {
    to.push_back(conv_row(slot, t));
  }
}

std::vector<MemorySpan> StateParts::checkpoint(int32_t slot) const {
  std::vector<MemorySpan> out;
  for (const Layer& l : layers) append(out, spans_at({&l.checkpoint, &l.scale}, slot));
  append(out, spans_at({&conv_beside}, slot));
  return out;
}

std::vector<MemorySpan> StateParts::ring(int32_t slot) const {
  std::vector<MemorySpan> out;
  for (const Layer& l : layers) {
    append(out, spans_at({&l.ring_value, &l.ring_key, &l.ring_gate, &l.conv}, slot));
  }
  return out;
}

std::vector<MemorySpan> StateParts::page(int32_t page) const {
  std::vector<MemorySpan> out;
  for (const Slots& pages : kv) out.push_back(pages.at(page));
  return out;
}

std::vector<MemorySpan> StateParts::conv_rows(int32_t ring_slot, int64_t position) const {
  std::vector<MemorySpan> out;
  for (const Layer& l : layers) l.add_conv_rows(ring_slot, position, out);
  return out;
}

std::vector<MemorySpan> StateParts::conv_rows_beside(int32_t checkpoint_slot,
                                                     int64_t position) const {
  std::vector<MemorySpan> out;
  std::byte* at = conv_beside.at(checkpoint_slot).data;
  for (const Layer& l : layers) {
    const int64_t row = l.conv.bytes / l.conv_ring_rows;
    for (int64_t t = position - l.conv_width + 1; t < position; ++t, at += row) {
      if (t >= 0) out.push_back({at, row});
    }
  }
  return out;
}

std::vector<MemorySpan> StateParts::snapshot(int32_t slot, std::span<const int32_t> pages) const {
  std::vector<MemorySpan> out = checkpoint(slot);
  for (const Slots& layer : kv) {
    for (const int32_t page : pages) out.push_back(layer.at(page));
  }
  return out;
}

ModelMemory memory_of(const StateSizes& sizes) {
  ModelMemory out;
  for (const RecurrentSizes& layer : sizes.recurrent) {
    out.checkpoint_slot += layer.checkpoint_bytes() + layer.scale_bytes();
    const int64_t row = layer.value_bytes() + layer.key_bytes() + layer.gate_bytes();
    out.ring_token += row;
    out.ring_slot += row * layer.problem.grid.ring_rows;
    out.conv_slot += layer.conv_row_bytes() * layer.conv.ring_rows;
    out.conv_rows += layer.conv_row_bytes() * (layer.conv.width - 1);
  }
  out.conv_slot += sizes.hidden.row_bytes * sizes.hidden.ring_rows;
  out.conv_rows += sizes.hidden.row_bytes * (HiddenSizes::kWidth - 1);
  for (const KvSizes& layer : sizes.kv) {
    out.kv_page += layer.page_bytes;
    out.kv_token += layer.token_bytes;
  }
  return out;
}

StatePool take_pool(const StateSizes& sizes, const PoolSizes& slots, Arena& arena) {
  if (slots.checkpoint_slots < 1 || slots.ring_slots < 1 || slots.kv_pages < 1) {
    fail("a state pool needs at least one checkpoint slot, ring slot and KV page; asked for ",
         slots.checkpoint_slots, ", ", slots.ring_slots, " and ", slots.kv_pages);
  }
  const auto take = [&](const char* purpose, int64_t each, int32_t count) {
    return StateParts::Slots{arena.take_as<std::byte>(purpose, each * count), each, count};
  };
  StatePool out;
  out.sizes = slots;
  for (const RecurrentSizes& layer : sizes.recurrent) {
    const int64_t rows = layer.problem.grid.ring_rows;
    StateParts::Layer part;
    part.checkpoint = take("checkpoints", layer.checkpoint_bytes(), slots.checkpoint_slots);
    part.scale = take("checkpoints", layer.scale_bytes(), slots.checkpoint_slots);
    part.ring_value = take("rings", rows * layer.value_bytes(), slots.ring_slots);
    part.ring_key = take("rings", rows * layer.key_bytes(), slots.ring_slots);
    part.ring_gate = take("rings", rows * layer.gate_bytes(), slots.ring_slots);
    part.conv = take("conv", layer.conv.ring_rows * layer.conv_row_bytes(), slots.ring_slots);
    part.ring_rows = rows;
    part.conv_ring_rows = layer.conv.ring_rows;
    part.conv_width = layer.conv.width;
    out.recurrent.push_back({part.checkpoint.data, reinterpret_cast<float*>(part.scale.data),
                             part.ring_value.data, part.ring_key.data,
                             reinterpret_cast<float*>(part.ring_gate.data), part.conv.data});
    out.parts.layers.push_back(part);
  }
  if (const HiddenSizes& hidden = sizes.hidden; hidden.row_bytes > 0) {
    StateParts::Layer part;
    part.conv = take("conv", hidden.ring_rows * hidden.row_bytes, slots.ring_slots);
    part.conv_ring_rows = hidden.ring_rows;
    part.conv_width = HiddenSizes::kWidth;
    out.parts.layers.push_back(part);
  }
  for (const KvSizes& layer : sizes.kv) {
    out.parts.kv.push_back(take("KV pages", layer.page_bytes, slots.kv_pages));
    out.kv.push_back({out.parts.kv.back().data, layer.page_bytes});
  }
  if (slots.snapshots) {
    out.parts.conv_beside = take("conv", memory_of(sizes).conv_rows, slots.checkpoint_slots);
  }
  return out;
}

void place_state(const RecurrentSizes& layer, const RecurrentPool& pool, StepArgs& args) {
  const int64_t rows = layer.problem.grid.ring_rows;
  args.checkpoint = pool.checkpoint;
  args.checkpoint_slot_stride = layer.checkpoint_elements;
  args.scale = pool.scale;
  args.scale_slot_stride = layer.scale_elements;
  args.ring_value = {pool.ring_value, rows * layer.value_row, layer.value_row};
  args.ring_key = {pool.ring_key, rows * layer.key_row, layer.key_row};
  args.ring_gate = {pool.ring_gate, rows * layer.gate_row, layer.gate_row};
}

Ring conv_ring(const RecurrentSizes& layer, const RecurrentPool& pool) {
  const int64_t row = layer.conv.n_channels;
  return {pool.conv, layer.conv.ring_rows * row, row};
}

}  // namespace replayssm
