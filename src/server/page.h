// The page at /: one HTML file, compiled in.
#pragma once

#include <string>

namespace replayssm::server {

const std::string& page_html();

}  // namespace replayssm::server
