#include "replay/cpu/conv_impl.h"
#include "replay/cpu/plain_impl.h"
#include "replay/cpu/step_impl.h"

namespace replayssm::cpu::REPLAYSSM_ISA {

const StepKernels kStepKernels = {run_unit,    write_sweep_keys, export_head,
                                  import_head, run_plain,        run_conv};

}  // namespace replayssm::cpu::REPLAYSSM_ISA
