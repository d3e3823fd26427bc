#include "model/state.h"

#include <cstring>

#include "core/error.h"

namespace replayssm {
namespace {

// All bits set is a NaN in fp32, fp16 and bf16.
constexpr int kNanByte = 0xff;

size_t bytes_for(int64_t slots, int64_t elements, int64_t element_bytes) {
  return static_cast<size_t>(slots * elements * element_bytes);
}

std::byte* slot_of(Buffer& buffer, int32_t slots, int32_t slot) {
  REPLAYSSM_CHECK(slot >= 0 && slot < slots, "slot ", slot, " of ", slots);
  return buffer.as<std::byte>() + buffer.bytes() / slots * slot;
}

void copy_slot(Buffer& buffer, int32_t slots, int32_t from, int32_t to) {
  if (buffer.bytes() == 0) return;
  std::memmove(slot_of(buffer, slots, to), slot_of(buffer, slots, from), buffer.bytes() / slots);
}

void poison_slot(Buffer& buffer, int32_t slots, int32_t slot) {
  if (buffer.bytes() == 0) return;
  std::memset(slot_of(buffer, slots, slot), kNanByte, buffer.bytes() / slots);
}

}  // namespace

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
    recurrent_.push_back(std::move(pool));
  }
  for (const auto& layer : model.attention()) {
    kv_.emplace_back(bytes_for(sizes.kv_pages, layer.kv.page_bytes(), 1));
  }
}

ops::KvPool StatePool::kv(size_t i) {
  return {kv_[i].data(), static_cast<int64_t>(kv_[i].bytes()) / sizes_.kv_pages};
}

void StatePool::copy_ring(int32_t from, int32_t to) {
  for (auto& pool : recurrent_) {
    copy_slot(pool.ring_value, sizes_.ring_slots, from, to);
    copy_slot(pool.ring_key, sizes_.ring_slots, from, to);
    copy_slot(pool.ring_gate, sizes_.ring_slots, from, to);
    copy_slot(pool.conv, sizes_.ring_slots, from, to);
  }
}

void StatePool::copy_page(int32_t from, int32_t to) {
  for (auto& pages : kv_) copy_slot(pages, sizes_.kv_pages, from, to);
}

void StatePool::poison_checkpoint(int32_t slot) {
  for (auto& pool : recurrent_) {
    poison_slot(pool.checkpoint, sizes_.checkpoint_slots, slot);
    poison_slot(pool.scale, sizes_.checkpoint_slots, slot);
  }
}

void StatePool::poison_ring(int32_t slot) {
  for (auto& pool : recurrent_) {
    poison_slot(pool.ring_value, sizes_.ring_slots, slot);
    poison_slot(pool.ring_key, sizes_.ring_slots, slot);
    poison_slot(pool.ring_gate, sizes_.ring_slots, slot);
    poison_slot(pool.conv, sizes_.ring_slots, slot);
  }
}

void StatePool::poison_page(int32_t page) {
  for (auto& pages : kv_) poison_slot(pages, sizes_.kv_pages, page);
}

int64_t StatePool::bytes() const {
  size_t total = 0;
  for (const auto& pool : recurrent_) {
    total += pool.checkpoint.bytes() + pool.scale.bytes() + pool.ring_value.bytes() +
             pool.ring_key.bytes() + pool.ring_gate.bytes() + pool.conv.bytes();
  }
  for (const auto& pages : kv_) total += pages.bytes();
  return static_cast<int64_t>(total);
}

}  // namespace replayssm
