#include "model/cpu/weights_cpu.h"

#include <algorithm>
#include <cstring>

#include "core/memory.h"
#include "model/load_weights.h"
#include "model/model_source.h"

namespace replayssm {

CpuWeightSink::CpuWeightSink(const Model& model, WeightFiles& files, Arena& arena, int64_t total,
                             ThreadPool* pool)
    : model_(model),
      files_(files),
      arena_(arena),
      counts_(total == 0),
      pool_(pool),
      progress_(total) {}

void CpuWeightSink::count(int64_t bytes) {
  matrix_bytes_ += bytes;
  if (!counts_) progress_.show(this->bytes());
}

// FP8 is widened to bf16 in files of bf16, else to fp32; products of bf16 parts alone stay bf16.
DType CpuWeightSink::packed_dtype(std::span<const MatrixPart> parts) const {
  for (const MatrixPart& part : parts) {
    const DType stored = files_.format_of(part.name) == MatrixFormat::kWide
                             ? files_.dtype_of(part.name)
                             : model_.stored();
    if (stored != DType::kBF16) return DType::kF32;
  }
  return DType::kBF16;
}

// Parts of which some are of few bits, each as it is stored.
ops::Linear CpuWeightSink::stacked(std::span<const MatrixPart> parts) {
  std::vector<ops::Linear> all;
  for (const MatrixPart& part : parts) {
    if (files_.format_of(part.name) != MatrixFormat::kFewBits) {
      all.push_back(linear({&part, 1}, LinearUse::kLayer));
      continue;
    }
    const ops::QuantMatrix matrix = files_.few_bits(part);
    count(ops::Linear::packed_bytes(matrix.rows, matrix.cols, matrix.format));
    if (!counts_) all.push_back(ops::Linear::pack(matrix, nullptr, pool_));
  }
  if (counts_) return {};
  return all.size() == 1 ? std::move(all[0]) : ops::Linear::stack(std::move(all));
}

ops::Linear CpuWeightSink::linear(std::span<const MatrixPart> parts, LinearUse) {
  if (std::ranges::any_of(parts, [&](const MatrixPart& part) {
        return files_.format_of(part.name) == MatrixFormat::kFewBits;
      })) {
    return stacked(parts);
  }
  int64_t n_out = 0;
  for (const MatrixPart& part : parts) n_out += part.n_rows;
  const DType dtype = packed_dtype(parts);
  count(ops::Linear::packed_bytes(n_out, parts[0].cols, dtype));
  if (counts_) return {};
  const DType fp8_to = model_.stored() == DType::kBF16 ? DType::kBF16 : DType::kF32;
  ops::Linear out(n_out, parts[0].cols, dtype);
  int64_t output = 0;
  for (const MatrixPart& part : parts) {
    out.pack_rows(output, files_.rows(part, fp8_to));
    output += part.n_rows;
  }
  return out;
}

const float* CpuWeightSink::vector(const std::string& name, int64_t n, VectorKind kind,
                                   int32_t width) {
  auto* to = arena_.take_as<float>("weights", n);
  if (counts_) return nullptr;
  const std::vector<float> values = files_.vector(name, n, kind, width);
  std::memcpy(to, values.data(), values.size() * sizeof(float));
  return to;
}

void CpuWeightSink::tables(const ModelDescription& model, CpuWeights& out) {
  const int64_t vocab = model.spec.vocab, hidden = model.spec.hidden;
  const MatrixPart table{model.names.embedding, vocab, hidden, 0, vocab};
  if (model.spec.tied) {
    if (!counts_) files_.check_tied_head();
    out.head = linear({&table, 1}, LinearUse::kGate);
    return;
  }
  const MatrixPart head{model.names.lm_head, vocab, hidden, 0, vocab};
  out.head = linear({&head, 1}, LinearUse::kGate);
  if (files_.format_of(table.name) == MatrixFormat::kFewBits) {
    out.table = linear({&table, 1}, LinearUse::kGate);
    return;
  }
  const DType stored = model_.stored();
  void* to = arena_.take("weights", vocab * hidden * dtype_bytes(stored));
  out.embedding = {to, stored, vocab, hidden, hidden};
  if (counts_) return;
  const ops::ConstMatrix from = files_.rows(table, stored);
  std::memcpy(to, from.data, static_cast<size_t>(vocab * hidden * dtype_bytes(stored)));
}

int64_t weight_bytes_cpu(const Model& model) {
  const auto files = open_weights(model.description(), model.path());
  CountingArena arena(HostArena::kAlignment);
  CpuWeightSink sink(model, *files, arena, /*total=*/0, nullptr);
  take_weights(model.description(), sink);
  return sink.bytes();
}

LoadedWeightsCpu load_weights_cpu(const Model& model, Arena& arena, ThreadPool* pool) {
  const int64_t total = weight_bytes_cpu(model);
  check_memory(static_cast<double>(total), model.path() + ": its weights");
  const auto files = open_weights(model.description(), model.path());
  CpuWeightSink sink(model, *files, arena, total, pool);
  LoadedWeightsCpu out;
  out.weights = take_weights(model.description(), sink);
  files->finish();
  out.bytes = sink.bytes();
  out.n_parameters = files->n_parameters();
  out.skipped = files->skipped();
  return out;
}

}  // namespace replayssm
