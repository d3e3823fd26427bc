// Regular expressions of JSON Schema's "pattern".
#pragma once

#include <string>

namespace replayssm::server {

// The pattern in a form that the grammar compiler takes at its word. A string is enforced that
// matches it from end to end and holds no character that JSON writes as an escape. Throws Error
// on what that form cannot say: look-around, back references, word boundaries, anchors inside.
std::string enforced_pattern(const std::string& pattern);

}  // namespace replayssm::server
