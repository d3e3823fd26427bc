// From what a user writes to a model's folder or file, and from there to the model's name.
#pragma once

#include <string>

namespace replayssm {

// By its name.
bool is_gguf(const std::string& path);

// A folder or GGUF file as it is; of a Hugging Face cache ("models--Org--Name", or a snapshot in
// it) the snapshot of its main branch; for "Org/Name" that is no folder, the cache's copy. Throws
// Error, one line that says what to do, where there is none or what is there is no model.
std::string find_model(const std::string& path);

// "Org/Name" for a snapshot of a Hugging Face cache, else the folder's own name; of a GGUF file the
// name without ".gguf" and the mark of a split set.
std::string model_name(const std::string& at);

}  // namespace replayssm
