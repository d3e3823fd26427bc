// From what a user writes to a model's folder, and from the folder to the model's name.
#pragma once

#include <string>

namespace replayssm {

// A folder as it is; of a Hugging Face cache ("models--Org--Name", or a snapshot in it) the
// snapshot of its main branch; for "Org/Name" that is no folder, the cache's copy. Throws Error,
// one line that says what to do, where there is none or the folder holds no model.
std::string find_model_folder(const std::string& path);

// "Org/Name" for a snapshot of a Hugging Face cache, else the folder's own name.
std::string model_name(const std::string& folder);

}  // namespace replayssm
