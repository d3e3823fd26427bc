// Shared by the tests of loading: a fixture with changes.
#pragma once

#include <map>
#include <string>

#include "model/cpu/weights_cpu.h"
#include "testing.h"

namespace replayssm {

// A fixture whose tensors can be changed before it is written to a folder of its own.
class EditedModel {
 public:
  explicit EditedModel(const std::string& name) : source_(TensorFiles::open_folder(fixture(name))) {
    for (const auto& view : source_.tensors()) {
      tensors_[view.name] = {view.name, view.dtype, view.shape, view.data};
    }
    config_ = read_text(fixture(name) + "/config.json");
  }

  std::map<std::string, TensorToWrite>& tensors() { return tensors_; }
  std::string& config() { return config_; }

  const std::string& write() {
    std::vector<TensorToWrite> list;
    for (const auto& [name, tensor] : tensors_) list.push_back(tensor);
    write_safetensors(folder_.file("model.safetensors"), list);
    write_text(folder_.file("config.json"), config_);
    return folder_.path();
  }
  void expect_refused(std::initializer_list<std::string> parts) {
    const std::string& folder = write();
    expect_refusal(parts, [&] {
      HostArena memory;
      load_weights_cpu(*Model::load(folder, {}), memory);
    });
  }

 private:
  TensorFiles source_;
  std::map<std::string, TensorToWrite> tensors_;
  std::string config_;
  TempFolder folder_;
};

}  // namespace replayssm
