// From the C interface's structs to the library's own, each field checked.
#pragma once

#include <replayssm/replayssm.h>

#include "replay/capi/backend.h"

namespace replayssm::capi {

enum class Call { kStep, kSweep, kFold };

// Each writes its last argument only with RSSM_OK; else rssm_last_error() names the field.
rssm_status check(const rssm_problem* from, Problem* to);
rssm_status check(const rssm_conv_problem* from, ConvProblem* to);
rssm_status check(const Layer& layer, Call call, const rssm_step_args* from, StepArgs* to,
                  ParallelFor* parallel);
rssm_status check(const Conv& conv, const rssm_conv_args* from, ConvArgs* to,
                  ParallelFor* parallel);
rssm_status check(const rssm_commit_args* from, CommitArgs* to);
rssm_status check_slot(const Layer& layer, const void* slot, const float* scale,
                       const void* canonical);

// The two layouts are one (asserted in checks.cpp).
Row to_row(const rssm_row& row);

}  // namespace replayssm::capi
