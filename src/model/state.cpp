#include "model/state.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "core/error.h"

namespace replayssm {
namespace {

// All bits set is a NaN in fp32, fp16 and bf16.
constexpr int kNanByte = 0xff;

size_t bytes_for(int64_t slots, int64_t elements, int64_t element_bytes) {
  return static_cast<size_t>(slots * elements * element_bytes);
}

StateParts::Slots slots_of(Buffer& buffer, int32_t slots) {
  return {buffer.as<std::byte>(), static_cast<int64_t>(buffer.bytes()) / slots, slots};
}

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

StatePool::StatePool(const Model& model, PoolSizes sizes) : sizes_(sizes) {
  if (sizes.checkpoint_slots < 1 || sizes.ring_slots < 1 || sizes.kv_pages < 1) {
    fail("a state pool needs at least one checkpoint slot, ring slot and KV page; asked for ",
         sizes.checkpoint_slots, ", ", sizes.ring_slots, " and ", sizes.kv_pages);
  }
  const int64_t checkpoint_bytes = dtype_bytes(model.checkpoint());
  const int64_t ring_bytes = dtype_bytes(model.ring());
  const int64_t ring_rows = int64_t{sizes.ring_slots} * model.grid().ring_rows;
  for (const auto& layer : model.recurrent()) {
    const int64_t conv_rows = int64_t{sizes.ring_slots} * layer.conv->problem().ring_rows;
    RecurrentPool pool;
    pool.checkpoint =
        Buffer(bytes_for(sizes.checkpoint_slots, layer.checkpoint_elements, checkpoint_bytes));
    pool.scale = Buffer(bytes_for(sizes.checkpoint_slots, layer.scale_elements, sizeof(float)));
    pool.ring_value = Buffer(bytes_for(ring_rows, layer.ring_value_row, ring_bytes));
    pool.ring_key = Buffer(bytes_for(ring_rows, layer.ring_key_row, ring_bytes));
    pool.ring_gate = Buffer(bytes_for(ring_rows, layer.ring_gate_row, sizeof(float)));
    pool.conv = Buffer(bytes_for(conv_rows, layer.conv_row, dtype_bytes(model.activation())));
    const int32_t rings = sizes.ring_slots;
    parts_.layers.push_back({slots_of(pool.checkpoint, sizes.checkpoint_slots),
                             slots_of(pool.scale, sizes.checkpoint_slots),
                             slots_of(pool.ring_value, rings), slots_of(pool.ring_key, rings),
                             slots_of(pool.ring_gate, rings), slots_of(pool.conv, rings),
                             model.grid().ring_rows, layer.conv->problem().ring_rows,
                             layer.conv->problem().width});
    recurrent_.push_back(std::move(pool));
  }
  for (const auto& layer : model.attention()) {
    kv_.emplace_back(bytes_for(sizes.kv_pages, layer.kv.page_bytes(), 1));
    parts_.kv.push_back(slots_of(kv_.back(), sizes.kv_pages));
  }
  if (sizes.snapshots) {
    conv_beside_ = Buffer(bytes_for(sizes.checkpoint_slots, model.memory().conv_rows, 1));
    parts_.conv_beside = slots_of(conv_beside_, sizes.checkpoint_slots);
  }
}

ops::KvPool StatePool::kv(size_t i) {
  return {kv_[i].data(), static_cast<int64_t>(kv_[i].bytes()) / sizes_.kv_pages};
}

int64_t StatePool::bytes() const {
  size_t total = conv_beside_.bytes();
  for (const auto& pool : recurrent_) {
    total += pool.checkpoint.bytes() + pool.scale.bytes() + pool.ring_value.bytes() +
             pool.ring_key.bytes() + pool.ring_gate.bytes() + pool.conv.bytes();
  }
  for (const auto& pages : kv_) total += pages.bytes();
  return static_cast<int64_t>(total);
}

}  // namespace replayssm
