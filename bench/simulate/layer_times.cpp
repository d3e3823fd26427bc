#include "bench/simulate/layer_times.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/common/state_bytes.h"
#include "core/error.h"
#include "core/text_file.h"

namespace replayssm::bench {
namespace {

using nlohmann::json;

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  fail("unknown dtype ", name);
}

Family family_of(const std::string& name) {
  for (const Family family : {Family::kMamba2, Family::kGdn, Family::kKda}) {
    if (name == family_name(family)) return family;
  }
  fail("unknown family ", name);
}

void read_file(const std::string& path, std::vector<LayerTime>& out) {
  const json file = json::parse(read_text_file(path));
  LayerTime shape;
  shape.family = family_of(file.at("family"));
  shape.n_heads = file.at("n_heads");
  shape.value_dim = file.at("value_dim");
  shape.key_dim = file.at("key_dim");
  shape.dtype = dtype_of(file.at("dtype"));
  shape.file = path;
  shape.card = file.at("runs").at(0).at("card");
  shape.date = file.at("runs").at(0).at("date");
  if (shape.n_heads < 1) fail("n_heads is ", shape.n_heads);
  for (const auto& cell : file.at("cells")) {
    const auto way = parse_state_method(cell.at("way"));
    if (!way || !cell.contains("us")) continue;  // a sweep, or skipped in the run
    LayerTime time = shape;
    time.way = *way;
    time.window = cell.at("window");
    time.accepted = cell.at("accepted");
    auto same = std::find_if(out.begin(), out.end(), [&](const LayerTime& known) {
      return known.file == path && known.way == time.way && known.window == time.window;
    });
    if (same == out.end()) same = out.insert(out.end(), time);
    same->us[cell.at("batch")] = cell.at("us");
  }
}

}  // namespace

double LayerTime::seconds(int64_t batch, int32_t heads) const {
  const double at = static_cast<double>(batch) * heads / n_heads;
  auto above = us.lower_bound(static_cast<int64_t>(std::ceil(at)));
  if (above == us.begin()) return above->second * 1e-6;  // never less than the smallest measured
  if (above == us.end()) --above;
  if (above == us.begin()) {
    return above->second * at / static_cast<double>(above->first) * 1e-6;
  }
  const auto below = std::prev(above);
  const auto span = static_cast<double>(above->first - below->first);
  const double slope = (above->second - below->second) / span;
  return (below->second + slope * (at - static_cast<double>(below->first))) * 1e-6;
}

std::vector<LayerTime> read_layer_times(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("h200_") && name.ends_with(".json"))
      paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<LayerTime> out;
  for (const std::string& path : paths) {
    try {
      const json file = json::parse(read_text_file(path));
      if (file.contains("family")) read_file(path, out);  // others hold no layers
    } catch (const std::exception& why) {
      std::string line = why.what();
      std::replace_if(line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
      fail(path, ": is no file of layer times: ", line);
    }
  }
  if (out.empty()) fail(folder, ": holds no layer times (h200_*.json)");
  return out;
}

}  // namespace replayssm::bench
