// precision_study: the tables of docs/precision.md.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/precision/study.h"
#include "replay/kernels.h"

namespace {

using namespace replayssm;
using namespace replayssm::study;

struct Table {
  std::string title;
  std::vector<LayerInputs> columns;
};

Table synthetic_table(Family family, int64_t n_tokens, uint64_t seed) {
  Table table;
  table.title = std::string(family_name(family)) + ", synthetic, " + std::to_string(n_tokens) +
                " tokens, seed " + std::to_string(seed);
  for (Decay decay : {Decay::kStrong, Decay::kWeak, Decay::kNone}) {
    table.columns.push_back(synthetic(family, decay, n_tokens, seed));
  }
  return table;
}

// Prints the table as it grows, in Markdown; returns it as JSON.
nlohmann::json print_table(const Table& table, int64_t n_last, ThreadPool& pool, bool quiet) {
  nlohmann::json rows = nlohmann::json::array();
  std::string notes;
  std::vector<std::vector<double>> exact;
  for (const LayerInputs& in : table.columns) {
    exact.push_back(exact_outputs(in, std::min(n_last, in.n_tokens)));
  }
  if (!quiet) {
    std::printf("\n%s\n\n| scheme | bytes |", table.title.c_str());
    for (const LayerInputs& in : table.columns) std::printf(" %s |", in.name.c_str());
    std::printf("\n|---|---|");
    for (size_t i = 0; i < exact.size(); ++i) std::printf("---|");
    std::printf("\n");
  }
  for (const Scheme& scheme : schemes()) {
    nlohmann::json errors = nlohmann::json::object();
    int64_t n_saturated = 0;
    if (!quiet) std::printf("| %s | %.3g |", scheme.name().c_str(), scheme.bytes_per_element());
    for (size_t i = 0; i < exact.size(); ++i) {
      const Result result = measure(table.columns[i], scheme, exact[i], pool);
      errors[table.columns[i].name] = result.error;
      n_saturated += result.n_saturated;
      if (!quiet) std::printf(" %.1e |", result.error);
    }
    if (!quiet) std::printf("\n");
    if (n_saturated > 0)
      notes += scheme.name() + ": " + std::to_string(n_saturated) + " values saturated\n";
    rows.push_back({{"scheme", scheme.name()},
                    {"bytes_per_element", scheme.bytes_per_element()},
                    {"saturated", n_saturated},
                    {"error", errors}});
  }
  if (!quiet && !notes.empty()) std::printf("\n%s", notes.c_str());
  return {{"title", table.title}, {"rows", rows}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Error of each way to keep a recurrent state: ||y - y64|| / ||y64|| over the last "
      "tokens. Without --dump: the synthetic tables."};
  std::vector<std::string> dumps;
  int64_t n_last = 500;
  uint64_t seed = 1;
  bool json = false;
  app.add_option("--dump", dumps, "safetensors files, each with one layer's inputs: a column each");
  app.add_option("--last", n_last, "tokens at the end that are measured")->capture_default_str();
  app.add_option("--seed", seed, "of the synthetic inputs")->capture_default_str();
  app.add_flag("--json", json, "one JSON object instead of tables");
  CLI11_PARSE(app, argc, argv);

  ThreadPool pool;
  try {
    std::vector<Table> tables;
    if (dumps.empty()) {
      tables.push_back(synthetic_table(Family::kGdn, 4000, seed));
      tables.push_back(synthetic_table(Family::kKda, 4000, seed));
      tables.push_back(synthetic_table(Family::kMamba2, 3000, seed));
    } else {
      Table& table = tables.emplace_back();
      table.title = "Recorded inputs";
      for (const std::string& path : dumps) table.columns.push_back(read_dump(path));
    }
    nlohmann::json all = {{"isa", isa_name(best_isa())}, {"last", n_last}, {"seed", seed}};
    for (const Table& table : tables) {
      all["tables"].push_back(print_table(table, n_last, pool, json));
    }
    if (json) std::cout << all.dump(2) << "\n";
  } catch (const std::exception& error) {
    std::cerr << "precision_study: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
