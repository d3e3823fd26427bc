// The JSON of a shard (one layer shape and state dtype), and how it is resumed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cells.h"

namespace replayssm::bench {

struct Machine {
  std::string card, driver, cuda;
  // Measured at the start of the run.
  double read_bytes_per_second = 0, copy_bytes_per_second = 0;
};

// One invocation; every cell points at the one that measured it.
nlohmann::json run_json(const Machine& machine, const std::string& command);

class Shard {
 public:
  // Reads folder/h200_<shape>_<dtype>.json if it is there and of these sources; else starts anew.
  // Throws Error if the file is no shard.
  Shard(const std::string& folder, const std::string& source_hash, const LayerShape& shape,
        DType dtype, int interval);

  bool has(const Cell& cell) const { return cells_.contains(cell.name()); }
  bool failed(const Cell& cell) const {
    return has(cell) && cells_.at(cell.name()).contains("failed");
  }
  // Adds a cell ({"us": ...} or {"skipped": reason} or {"failed": error}) and writes the file.
  void add(const Cell& cell, const nlohmann::json& result, const nlohmann::json& run);

 private:
  std::string path_;
  nlohmann::json head_;
  nlohmann::json runs_ = nlohmann::json::array();
  nlohmann::json cells_ = nlohmann::json::object();
};

}  // namespace replayssm::bench
