#include "core/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace replayssm {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeThreshold = size_t{1} << 20;
}  // namespace

void check_memory(double bytes, const std::string& what) {
  const double all =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes <= all) return;
  constexpr double kMiB = 1 << 20;
  fail(what, " would take ", static_cast<int64_t>(bytes / kMiB), " MiB; this machine has ",
       static_cast<int64_t>(all / kMiB));
}

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugeThreshold;
  const size_t alignment = huge ? kHugePage : 64;
  if (bytes > SIZE_MAX - alignment) fail("out of memory: cannot take ", bytes, " bytes");
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  data_ = std::aligned_alloc(alignment, rounded);
  if (data_ == nullptr) fail("out of memory: cannot take ", bytes, " bytes");
  if (huge)
    madvise(data_, rounded, MADV_HUGEPAGE);  // advice only: a refusal costs speed, not truth
  std::memset(data_, 0, rounded);
}

Buffer::~Buffer() { std::free(data_); }

void* map_pages(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) fail("out of memory: cannot take ", bytes, " bytes");
  return pages;
}

void unmap_pages(void* pages, size_t bytes) noexcept { munmap(pages, bytes); }

}  // namespace replayssm
