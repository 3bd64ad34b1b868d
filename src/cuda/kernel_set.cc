#include "core/cuda_backend.h"
#include "cuda/table.h"

namespace kvant::cuda {

detail::KernelSet kernel_set() {
  return detail::make_kernel_set(
      ArchSku::sm_80, []<class Kernel>(TypeList<Kernel>) { return kernels<Kernel>(); }, detail::KernelFamilies{});
}

}  // namespace kvant::cuda
