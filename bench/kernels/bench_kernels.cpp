// Microseconds of one layer's state step on the GPU: replay, and the baselines beside it. Prints a
// line per cell and keeps one JSON file per shape and dtype. Cells that are in it already, measured
// with the same sources, are not measured again.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <regex>

#include "results.h"
#include "setup.h"
#include "source_hash.h"

namespace replayssm::bench {
namespace {

struct Flags {
  std::string out = "bench/results";
  std::string filter;
  bool headline = false;
  int interval = 16;
  double seconds = 1e9;
};

struct Counts {
  int measured = 0, kept = 0, skipped = 0, failed = 0, left = 0;
};

nlohmann::json measure(const Cell& cell, Arena& arena) {
  const Prepared prepared = prepare(cell, arena);
  if (!prepared.reason.empty()) return {{"skipped", prepared.reason}};
  const double us = time_us(prepared.n_steps, prepared.launch);
  const double bytes = must_move_bytes(cell), floor = floor_us(bytes);
  return {{"us", us},
          {"must_move_bytes", bytes},
          {"bytes_per_second", bytes / us * 1e6},
          {"floor_us", floor},
          {"floor_fraction", floor / us}};
}

void print(const Cell& cell, const nlohmann::json& result) {
  if (result.contains("us")) {
    std::printf("%-42s %9.2f us %7.0f GB/s  floor %8.2f us  %.2f of it\n", cell.name().c_str(),
                result["us"].get<double>(), result["bytes_per_second"].get<double>() / 1e9,
                result["floor_us"].get<double>(), result["floor_fraction"].get<double>());
  } else {
    std::printf("%-42s %s\n", cell.name().c_str(), result.dump().c_str());
  }
  std::fflush(stdout);
}

// False if a cell failed: the device's context is lost then.
bool run_shard(Shard& shard, const std::vector<Cell>& cells, const nlohmann::json& run,
               const std::function<bool()>& out_of_time, Arena& arena, Counts& counts) {
  for (const Cell& cell : cells) {
    if (shard.has(cell)) {  // a failed one is not tried again before the sources change
      ++(shard.failed(cell) ? counts.failed : counts.kept);
      continue;
    }
    if (out_of_time()) {
      ++counts.left;
      continue;
    }
    nlohmann::json result;
    try {
      result = measure(cell, arena);
    } catch (const OutOfMemory& error) {
      result = {{"skipped", error.what()}};
    } catch (const Error& error) {
      result = {{"failed", error.what()}};
    }
    shard.add(cell, result, run);
    print(cell, result);
    if (result.contains("failed")) {
      ++counts.failed;
      return false;
    }
    ++(result.contains("us") ? counts.measured : counts.skipped);
  }
  return true;
}

int run(const Flags& flags, const std::string& command) {
  const auto start = std::chrono::steady_clock::now();
  const auto out_of_time = [&] {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    return spent.count() > flags.seconds;
  };
  std::regex filter;
  try {
    filter = std::regex(flags.filter);
  } catch (const std::regex_error&) {
    fail("--filter ", flags.filter, ": not a regular expression");
  }
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error) fail("--out ", flags.out, ": ", error.message());

  Arena arena;
  const Machine machine = describe_machine(arena);
  const nlohmann::json run = run_json(machine, command);
  std::printf("%s, driver %s, CUDA %s: read %.2f TB/s, copy %.2f TB/s\n", machine.card.c_str(),
              machine.driver.c_str(), machine.cuda.c_str(), machine.read_bytes_per_second / 1e12,
              machine.copy_bytes_per_second / 1e12);
  Counts counts;
  bool alive = true;
  for (const LayerShape& shape : layer_shapes()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      std::vector<Cell> cells = cells_of(shape, dtype, flags.interval, flags.headline);
      std::erase_if(cells,
                    [&](const Cell& cell) { return !std::regex_search(cell.name(), filter); });
      if (cells.empty() || !alive) continue;
      Shard shard(flags.out, kSourceHash, shape, dtype, flags.interval);
      alive = run_shard(shard, cells, run, out_of_time, arena, counts);
    }
  }
  std::printf("%d measured, %d were there, %d without a kernel or memory, %d failed, %d left\n",
              counts.measured, counts.kept, counts.skipped, counts.failed, counts.left);
  return counts.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace replayssm::bench

int main(int argc, char** argv) {
  using namespace replayssm::bench;
  CLI::App app("times the CUDA step of one recurrent layer");
  Flags flags;
  app.add_option("--out", flags.out, "folder of the JSON files")->capture_default_str();
  app.add_option("--filter", flags.filter, "only cells whose shape/dtype/way/T4/B256 this matches");
  app.add_flag("--headline", flags.headline, "only the cells that the targets speak of");
  app.add_option("--interval", flags.interval, "B of the grid")
      ->check(CLI::IsMember({16, 32}))
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "start no cell after this time");
  CLI11_PARSE(app, argc, argv);
  std::string command;
  for (int i = 0; i < argc; ++i) command += (i > 0 ? " " : "") + std::string(argv[i]);
  try {
    return run(flags, command);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kernels: %s\n", error.what());
    return 1;
  }
}
