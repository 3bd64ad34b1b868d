// Quantizes a tensor on the GPU with one scale for each token, found on the way, and checks the codes against the
// CPU's. Where there is no GPU, or kvant was built without CUDA, it prints why and stops.
#include <cuda_runtime_api.h>
#include <kvant/kvant.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

void explain(const kvant::Status& status) {
  std::printf("%s: %s\n", std::string(name(status.code())).c_str(), std::string(status.message()).c_str());
}

using Plan = kvant::DynamicRangeQuantizePlan<float, std::int8_t>;

}  // namespace

int main() {
  constexpr std::int64_t kTokens = 512, kFeatures = 4096;
  const kvant::Shape shape = {kTokens, kFeatures};
  std::vector<float> x(kTokens * kFeatures), scale(kTokens), cpu_scale(kTokens);
  std::vector<std::int8_t> q(x.size()), cpu_q(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * static_cast<float>(1 + i % 7);

  // The same plans as on the CPU; only the stream is another. Null is CUDA's default stream.
  cudaStream_t cuda = nullptr;
  const kvant::Stream stream = kvant::Stream::cuda(cuda);
  const auto plan = Plan::select(stream, {.shape = shape, .scope = kvant::PerToken{}});
  if (!plan.ok()) {
    explain(plan.status());
    std::printf("Nothing was run on a GPU.\n");
    const kvant::StatusCode code = plan.status().code();
    return code == kvant::StatusCode::DeviceUnavailable || code == kvant::StatusCode::Unsupported ? 0 : 1;
  }

  // Tensors and workspace are the caller's, in device memory.
  void *device_x = nullptr, *device_q = nullptr, *device_scale = nullptr, *scratch = nullptr;
  if (cudaMalloc(&device_x, x.size() * sizeof(float)) != cudaSuccess ||
      cudaMalloc(&device_q, q.size()) != cudaSuccess ||
      cudaMalloc(&device_scale, scale.size() * sizeof(float)) != cudaSuccess ||
      cudaMalloc(&scratch, plan->workspace_size() + 1) != cudaSuccess)
    return 1;
  cudaMemcpyAsync(device_x, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice, cuda);

  // run() enqueues and returns; what follows on the same stream sees the result.
  kvant::Status status = plan->run(stream, {scratch, plan->workspace_size()},
                                   {.input = {static_cast<const float*>(device_x), shape},
                                    .output = {static_cast<std::int8_t*>(device_q), shape},
                                    .scale_out = {static_cast<float*>(device_scale), {kTokens}}});
  if (!status.ok()) return explain(status), 1;
  cudaMemcpyAsync(q.data(), device_q, q.size(), cudaMemcpyDeviceToHost, cuda);
  cudaMemcpyAsync(scale.data(), device_scale, scale.size() * sizeof(float), cudaMemcpyDeviceToHost, cuda);
  if (cudaStreamSynchronize(cuda) != cudaSuccess) return 1;
  for (void* memory : {device_x, device_q, device_scale, scratch}) cudaFree(memory);

  const kvant::Stream cpu = kvant::Stream::cpu();
  const auto cpu_plan = Plan::select(cpu, {.shape = shape, .scope = kvant::PerToken{}});
  if (!cpu_plan.ok()) return explain(cpu_plan.status()), 1;
  std::vector<std::byte> cpu_scratch(cpu_plan->workspace_size());
  status = cpu_plan->run(
      cpu, {cpu_scratch.data(), cpu_scratch.size()},
      {.input = {x.data(), shape}, .output = {cpu_q.data(), shape}, .scale_out = {cpu_scale.data(), {kTokens}}});
  if (!status.ok()) return explain(status), 1;
  const bool same = q == cpu_q && scale == cpu_scale;
  std::printf("%s: %s\n", plan->sku().name().c_str(),
              same ? "the CPU's codes and scales, bit for bit" : "NOT the CPU's");
  return same ? 0 : 1;
}
