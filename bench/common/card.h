// What one H200 reaches, measured: floors are held to these rates (tools/roofline_svg.py reads them
// here too).
#pragma once

namespace replayssm::bench {

inline constexpr double kReadBytesPerSecond = 4.55e12;  // a copy, counted both ways
inline constexpr double kFlopsPerSecond = 790e12;       // a large bf16 product; FP8 twice that
inline constexpr double kLaunchSeconds = 2e-6;          // of one kernel

}  // namespace replayssm::bench
