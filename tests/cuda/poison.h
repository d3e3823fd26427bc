// Fills the shared memory of every SM with 0xff, NaN in every float type: a kernel that
// reads what it has not written finds no leftovers of an earlier launch there.
#pragma once

namespace replayssm::test {

void poison_shared_memory();

}  // namespace replayssm::test
