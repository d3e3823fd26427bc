// What a model's tensors are called in the files at hand.
#pragma once

#include "model/families/family.h"
#include "model/safetensors.h"

namespace replayssm {

// `names` come in as the publishers' text-only files have them and leave as `files` do. Tools save
// a model under other prefixes ("model.language_model.", "language_model.backbone.", none), and a
// few modules under other names. The prefix is the one before "layers.0." under which the most
// tensors of the model are found. Also sets skipped_prefixes. A tensor that is not found keeps its
// name, so that the loader's message tells it.
void resolve_names(const TensorFiles& files, TensorNames& names);

}  // namespace replayssm
