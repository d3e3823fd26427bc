#include "runtime/mtp_drafts.h"

namespace replayssm {

void draft_by_mtp(Backend& backend, ops::Sampler& sampler, int64_t vocab, std::span<MtpJob> jobs) {
  std::vector<MtpJob*> open;
  for (MtpJob& job : jobs) {
    if (job.k > 0) open.push_back(&job);
  }
  std::vector<DraftRow> rows;
  while (!open.empty()) {
    rows.clear();
    for (const MtpJob* job : open) rows.push_back(job->row);
    const float* logits = backend.draft(rows);
    std::vector<MtpJob*> left;
    for (size_t i = 0; i < open.size(); ++i, logits += vocab) {
      MtpJob& job = *open[i];
      const auto drawn = sampler.sample(logits, job.sampling, ++job.row.position);
      if (drawn.status != ops::SampleStatus::kOk) continue;
      job.drafts.push_back(drawn.token);
      if (std::ssize(job.drafts) == job.k) continue;
      job.row.token = drawn.token;
      job.row.from = static_cast<int32_t>(i);
      left.push_back(&job);
    }
    open = std::move(left);
  }
}

}  // namespace replayssm
