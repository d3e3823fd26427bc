#include "results.h"

#include <ctime>
#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace replayssm::bench {

nlohmann::json run_json(const Machine& machine, const std::string& command) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc;
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &utc);
  return {{"date", date},
          {"command", command},
          {"card", machine.card},
          {"driver", machine.driver},
          {"cuda", machine.cuda},
          {"read_bytes_per_second", machine.read_bytes_per_second},
          {"copy_bytes_per_second", machine.copy_bytes_per_second}};
}

Shard::Shard(const std::string& folder, const std::string& source_hash, const LayerShape& shape,
             DType dtype, int interval)
    : path_(concat(folder, "/h200_", shape.name, "_", dtype_name(dtype), ".json")) {
  head_ = {{"source_hash", source_hash},   {"shape", shape.name},
           {"model", shape.model},         {"family", family_name(shape.family)},
           {"n_heads", shape.n_heads},     {"n_key_heads", shape.n_key_heads},
           {"value_dim", shape.value_dim}, {"key_dim", shape.key_dim},
           {"dtype", dtype_name(dtype)},   {"interval", interval}};
  std::ifstream file(path_);
  if (!file) return;
  const nlohmann::json old = nlohmann::json::parse(file, nullptr, false);
  try {
    if (old.at("source_hash") != source_hash || old.at("interval") != interval) return;
    runs_ = old.at("runs");
    for (const auto& cell : old.at("cells")) cells_[cell.at("name").get<std::string>()] = cell;
  } catch (const nlohmann::json::exception&) {
    fail(path_, ": not a result of bench_kernels; move it away");
  }
}

void Shard::add(const Cell& cell, const nlohmann::json& result, const nlohmann::json& run) {
  if (runs_.empty() || runs_.back() != run) runs_.push_back(run);
  nlohmann::json entry = {{"name", cell.name()},   {"way", cell.way_name()},
                          {"window", cell.window}, {"accepted", accepted_of(cell.window)},
                          {"batch", cell.batch},   {"run", runs_.size() - 1}};
  entry.update(result);
  cells_[cell.name()] = entry;

  nlohmann::json out = head_;
  out["runs"] = runs_;
  out["cells"] = nlohmann::json::array();
  for (const auto& [name, value] : cells_.items()) out["cells"].push_back(value);
  const std::string part = path_ + ".part";
  std::ofstream file(part);
  file << out.dump(1) << "\n" << std::flush;
  if (!file) fail(part, ": cannot write");
  file.close();
  std::filesystem::rename(part, path_);
}

}  // namespace replayssm::bench
