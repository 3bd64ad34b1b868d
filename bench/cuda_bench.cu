// Times kvant on a GPU through its public API and prints a Markdown table.
//
//   cuda_bench [--filter TEXT] [--repeats 7]
//
// Every operator's result is first compared with the CPU's, bit for bit. Then runs are captured in a CUDA graph, so
// that the time is the kernels' and not that of enqueuing them, and the best of several launches of the graph counts.
// Runs take turns with several sets of buffers, together larger than the L2 cache: what is timed comes from memory, as
// it does in a model of many layers. Bytes are those that must move: every input read once, every output written once.
// Exits 3 where there is no device.
#include <cuda_runtime.h>
#include <kvant/kvant.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

using kvant::ElementKind;
using kvant::QuantizeKind;

[[noreturn]] void fail(const std::string& sentence, int code = 1) {
  std::fprintf(stderr, "cuda_bench: %s\n", sentence.c_str());
  std::exit(code);
}

void need(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(error));
}

void need(const kvant::Status& status, const std::string& what) {
  if (!status.ok()) fail(what + ": " + std::string(name(status.code())) + ": " + std::string(status.message()));
}

class DeviceBytes {
 public:
  DeviceBytes() = default;
  explicit DeviceBytes(std::size_t size) {
    if (size > 0) need(cudaMalloc(&data_, size), "cudaMalloc");
  }
  DeviceBytes(DeviceBytes&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  ~DeviceBytes() { cudaFree(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

std::size_t bytes_of(ElementKind kind) {
  switch (kind) {
    case ElementKind::f64: return 8;
    case ElementKind::f32:
    case ElementKind::s32: return 4;
    case ElementKind::f16:
    case ElementKind::bf16: return 2;
    default: return 1;
  }
}

const char* text(ElementKind kind) {
  switch (kind) {
    case ElementKind::f32: return "f32";
    case ElementKind::f16: return "f16";
    case ElementKind::bf16: return "bf16";
    case ElementKind::s8: return "s8";
    default: return "?";
  }
}

// The same numbers in every run of the program.
class Numbers {
 public:
  std::uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  float unit() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }
  // Bell-shaped, between -6 and 6.
  float bell() {
    float sum = -6;
    for (int i = 0; i < 4; ++i) sum += 3 * unit();
    return sum;
  }

 private:
  std::uint64_t state_ = 1;
};

enum class Fill { bell, codes, scales, nothing };

// A tensor on the host, and as many copies on the device as there are sets of buffers.
struct Operand {
  Operand(ElementKind kind_, const kvant::Shape& shape_, Fill fill) : kind(kind_), shape(shape_) {
    const std::size_t count = static_cast<std::size_t>(shape.element_count().value());
    host.resize(count * bytes_of(kind));
    Numbers numbers;
    for (std::size_t i = 0; i < count; ++i) {
      if (fill == Fill::nothing) break;
      if (fill == Fill::codes) {
        put(i, static_cast<std::uint8_t>(numbers.bits()));
        continue;
      }
      const float x = fill == Fill::scales ? 0.01f + 0.02f * numbers.unit() : numbers.bell();
      if (kind == ElementKind::f32) put(i, x);
      if (kind == ElementKind::f16) put(i, kvant::to_half(x));
      if (kind == ElementKind::bf16) put(i, kvant::to_bfloat16(x));
    }
    output = fill == Fill::nothing;
  }

  template <class T>
  void put(std::size_t i, T value) {
    std::memcpy(host.data() + i * sizeof(T), &value, sizeof(T));
  }

  ElementKind kind;
  kvant::Shape shape;
  bool output = false;
  std::vector<std::byte> host;
  std::vector<DeviceBytes> device;
};

// How a run sees the operands: on the host, or one set on the device.
using Views = std::function<kvant::AnyMut(std::size_t operand)>;
using Run = std::function<kvant::Status(const kvant::Stream&, kvant::Workspace, const Views&)>;

struct Job {
  std::string operation, types, where;
  std::vector<Operand> operands;
  double operations = 0;  // of multiplications and additions; 0 where bytes are what counts
  bool compare = true;
  Run gpu, cpu;
  std::size_t gpu_workspace = 0, cpu_workspace = 0;
};

template <class Plan, class Arguments>
Run runner(const Plan& plan, Arguments arguments) {
  return [plan, arguments](const kvant::Stream& stream, kvant::Workspace workspace, const Views& views) {
    return plan.run(stream, workspace, arguments(views));
  };
}

// Both plans of a job: select() for the GPU's stream and for the CPU's.
template <class Select, class Arguments>
void plan(Job& job, const kvant::Stream& gpu, const kvant::Stream& cpu, Select select, Arguments arguments) {
  auto on_gpu = select(gpu);
  auto on_cpu = select(cpu);
  need(on_gpu.status(), job.operation);
  need(on_cpu.status(), job.operation);
  job.gpu = runner(*on_gpu, arguments);
  job.cpu = runner(*on_cpu, arguments);
  job.gpu_workspace = on_gpu->workspace_size();
  job.cpu_workspace = on_cpu->workspace_size();
}

struct Device {
  cudaDeviceProp properties = {};
  int clock_khz = 0, memory_khz = 0, bus_bits = 0, l2_bytes = 0, driver = 0, runtime = 0;
  double bandwidth = 0;  // bytes a second

  Device() {
    int index = 0;
    need(cudaGetDevice(&index), "cudaGetDevice");
    need(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    // CUDA 13 took the clocks out of cudaDeviceProp; the attributes are in all versions.
    need(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, index), "clock rate");
    need(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, index), "memory clock rate");
    need(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, index), "bus width");
    need(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, index), "L2 cache size");
    need(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    need(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    bandwidth = 2e3 * memory_khz * bus_bits / 8;  // two transfers in a clock
  }
};

class DeviceBenchmark {
 public:
  DeviceBenchmark(std::string filter, int repeats) : filter_(std::move(filter)), repeats_(repeats) {
    need(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    need(cudaEventCreate(&begin_), "cudaEventCreate");
    need(cudaEventCreate(&end_), "cudaEventCreate");
    gpu_ = kvant::Stream::cuda(stream_);
    need(gpu_.status(), "Stream::cuda");
  }

  void header() const {
    const Device& d = device_;
    std::printf("%s (sm_%d%d, %d multiprocessors at %.2f GHz, %.0f GB/s, %.0f MB of L2), driver for CUDA %d.%d, ",
                d.properties.name, d.properties.major, d.properties.minor, d.properties.multiProcessorCount,
                d.clock_khz * 1e-6, d.bandwidth * 1e-9, d.l2_bytes * 1e-6, d.driver / 1000, d.driver % 1000 / 10);
    std::printf("runtime %d.%d, kvant %s. Best of %d.\n\n", d.runtime / 1000, d.runtime % 1000 / 10,
                std::string(kvant::version()).c_str(), repeats_);
    std::printf(
        "| operator | types | what | µs | GB/s | share of the bandwidth | TOPS |\n|---|---|---|---|---|---|---|\n");
  }

  void copy() {
    constexpr std::size_t kBytes = std::size_t{512} << 20;
    if (!wanted("copy")) return;
    const DeviceBytes from(kBytes), to(kBytes);
    const double seconds = best([&](int) {
      need(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
    });
    row("cudaMemcpyAsync", "bytes", "512 MiB", seconds, 2.0 * kBytes, 0);
  }

  void elementwise(QuantizeKind op, ElementKind real, const kvant::Granularity& granularity, const char* where) {
    const kvant::ElementwiseOperator& facts = kvant::elementwise_operator(op);
    const bool backward = facts.backward_of.has_value();
    const bool reads_input = facts.reads_input;
    const ElementKind in = facts.input == kvant::ElementClass::code ? ElementKind::s8 : real;
    const ElementKind out = facts.output == kvant::ElementClass::code ? ElementKind::s8 : real;
    Job job;
    job.operation = std::string(name(op));
    job.types = std::string(text(in)) + " → " + text(out);
    job.where = where;
    if (!wanted(job)) return;
    const kvant::ElementwiseDescriptor descriptor = {
        .op = op, .shape = kShape, .granularity = granularity, .input = in, .output = out, .q_min = {}, .q_max = {}};
    std::vector<Operand>& operands = job.operands;
    operands.emplace_back(backward ? real : out, kShape, Fill::nothing);
    const bool one_scale = granularity.kind() == kvant::GranularityKind::tensor;
    if (!one_scale) operands.emplace_back(ElementKind::f32, *kvant::parameter_shape(kShape, granularity), Fill::scales);
    const std::size_t grad = operands.size();
    if (backward) operands.emplace_back(real, kShape, Fill::bell);
    const std::size_t input = operands.size();
    if (reads_input) operands.emplace_back(in, kShape, is_code(in) ? Fill::codes : Fill::bell);
    plan(
        job, gpu_, cpu_,
        [&](const kvant::Stream& stream) { return kvant::ElementwisePlan::select(stream, descriptor); },
        [=](const Views& views) {
          kvant::ElementwiseArgs args;
          args.output = views(0);
          args.scale = one_scale ? kvant::AnyParameter(0.02f) : kvant::AnyParameter(kvant::AnyRef(views(1)));
          if (backward) args.grad_output = views(grad);
          if (reads_input) args.input = views(input);
          return args;
        });
    measure(job);
  }

  void dynamic_range(ElementKind real, const kvant::Granularity& scope, const char* where) {
    Job job;
    job.operation = "dynamic_range_quantize";
    job.types = std::string(text(real)) + " → s8";
    job.where = where;
    if (!wanted(job)) return;
    const kvant::DynamicRangeQuantizeDescriptor descriptor = {.shape = kShape,
                                                              .scope = scope,
                                                              .mode = kvant::DynamicRangeMode::symmetric,
                                                              .input = real,
                                                              .output = ElementKind::s8};
    job.operands.emplace_back(ElementKind::s8, kShape, Fill::nothing);
    job.operands.emplace_back(ElementKind::f32, *kvant::parameter_shape(kShape, scope), Fill::nothing);
    job.operands.emplace_back(real, kShape, Fill::bell);
    plan(
        job, gpu_, cpu_,
        [&](const kvant::Stream& stream) { return kvant::AnyDynamicRangeQuantizePlan::select(stream, descriptor); },
        [](const Views& views) {
          return kvant::AnyDynamicRangeQuantizeArgs{.input = views(2), .output = views(0), .scale_out = views(1)};
        });
    measure(job);
  }

  void linear(std::int64_t m, std::int64_t n, std::int64_t k) {
    Job job;
    job.operation = "w8a8_linear";
    job.types = "s8 × s8 → f16";
    job.where = "M " + std::to_string(m) + ", N " + std::to_string(n) + ", K " + std::to_string(k);
    if (!wanted(job)) return;
    job.operations = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    job.compare = m <= 128;  // more takes the CPU too long
    job.operands.emplace_back(ElementKind::f16, kvant::Shape{m, n}, Fill::nothing);
    job.operands.emplace_back(ElementKind::s8, kvant::Shape{m, k}, Fill::codes);
    job.operands.emplace_back(ElementKind::f32, kvant::Shape{m}, Fill::scales);
    job.operands.emplace_back(ElementKind::s8, kvant::Shape{n, k}, Fill::codes);
    job.operands.emplace_back(ElementKind::f32, kvant::Shape{n}, Fill::scales);
    const kvant::W8A8LinearDescriptor descriptor = {
        .max_rows = m, .in_features = k, .out_features = n, .weight = ElementKind::s8, .output = ElementKind::f16};
    plan(
        job, gpu_, cpu_, [&](const kvant::Stream& stream) { return kvant::AnyLinearPlan::select(stream, descriptor); },
        [](const Views& views) {
          kvant::AnyLinearArgs args;
          args.activation = views(1);
          args.act_scale = kvant::AnyParameter(kvant::AnyRef(views(2)));
          args.weight = views(3);
          args.weight_scale = kvant::AnyParameter(kvant::AnyRef(views(4)));
          args.output = views(0);
          return args;
        });
    measure(job);
  }

 private:
  static constexpr kvant::Shape kShape = {4096, 4096};

  bool wanted(const std::string& title) const { return title.find(filter_) != std::string::npos; }
  bool wanted(const Job& job) const { return wanted(job.operation + " " + job.types + " " + job.where); }

  void measure(Job& job) {
    double bytes = 0;
    for (const Operand& operand : job.operands) bytes += static_cast<double>(operand.host.size());
    // Twice the cache, so that a set has left it when its turn comes again.
    const int sets = std::clamp(static_cast<int>(std::ceil(2.0 * device_.l2_bytes / bytes)) + 1, 2, 64);
    for (Operand& operand : job.operands) {
      for (int set = 0; set < sets; ++set) {
        operand.device.emplace_back(operand.host.size());
        need(cudaMemcpy(operand.device.back().data(), operand.host.data(), operand.host.size(), cudaMemcpyHostToDevice),
             "cudaMemcpy");
      }
    }
    const DeviceBytes scratch(job.gpu_workspace);
    const auto run = [&](int i) {
      const Views views = [&job, set = static_cast<std::size_t>(i % sets)](std::size_t operand) {
        const Operand& o = job.operands[operand];
        return kvant::AnyMut{o.device[set].data(), o.kind, o.shape, 0};
      };
      need(job.gpu(gpu_, {scratch.data(), job.gpu_workspace}, views), job.operation);
    };
    if (job.compare) {
      run(0);
      need(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      compare(job);
    }
    row(job.operation, job.types, job.where, best(run), bytes, job.operations);
  }

  void compare(Job& job) const {
    std::vector<std::byte> scratch(job.cpu_workspace);
    const Views views = [&job](std::size_t operand) {
      Operand& o = job.operands[operand];
      return kvant::AnyMut{o.host.data(), o.kind, o.shape, 0};
    };
    need(job.cpu(cpu_, {scratch.data(), scratch.size()}, views), job.operation + " on the CPU");
    for (const Operand& operand : job.operands) {
      if (!operand.output) continue;
      std::vector<std::byte> back(operand.host.size());
      need(cudaMemcpy(back.data(), operand.device[0].data(), back.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
      const auto [a, b] = std::mismatch(back.begin(), back.end(), operand.host.begin());
      if (a != back.end())
        fail(job.operation + " " + job.types + " " + job.where + ": the GPU's result differs from the CPU's at byte " +
             std::to_string(a - back.begin()));
    }
  }

  // Seconds of one run: the best over launches of a graph that is long enough for the clock of events.
  template <class F>
  double best(F run) {
    for (int i = 0; i < 3; ++i) run(i);  // modules are loaded and clocks go up
    need(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const double once = timed([&] { run(0); });
    const int runs = std::clamp(static_cast<int>(5e-3 / std::max(once, 1e-7)), 4, 512);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t launchable = nullptr;
    need(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < runs; ++i) run(i);
    need(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    need(cudaGraphInstantiate(&launchable, graph, 0), "cudaGraphInstantiate");
    double seconds = 1e30;
    for (int i = 0; i < repeats_ + 1; ++i) {  // the first warms up
      const double took = timed([&] { need(cudaGraphLaunch(launchable, stream_), "cudaGraphLaunch"); });
      if (i > 0) seconds = std::min(seconds, took / runs);
    }
    cudaGraphExecDestroy(launchable);
    cudaGraphDestroy(graph);
    return seconds;
  }

  template <class F>
  double timed(F work) {
    need(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    work();
    need(cudaEventRecord(end_, stream_), "cudaEventRecord");
    need(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    need(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

  void row(const std::string& operation, const std::string& types, const std::string& where, double seconds,
           double bytes, double operations) const {
    std::printf("| %s | %s | %s | %.1f | %.0f | %.2f | ", operation.c_str(), types.c_str(), where.c_str(),
                seconds * 1e6, bytes / seconds * 1e-9, bytes / seconds / device_.bandwidth);
    if (operations > 0) std::printf("%.0f ", operations / seconds * 1e-12);
    std::printf("|\n");
    std::fflush(stdout);
  }

  std::string filter_;
  int repeats_;
  Device device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  kvant::Stream cpu_ = kvant::Stream::cpu();
  kvant::Stream gpu_ = cpu_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string filter;
  int repeats = 7;
  bool only_device = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--filter" && i + 1 < argc) {
      filter = argv[++i];
    } else if (argument == "--repeats" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      repeats = std::atoi(argv[++i]);
    } else if (argument == "--device") {
      only_device = true;
    } else {
      fail("usage: cuda_bench [--filter TEXT] [--repeats 7] [--device: only say what it is]", 2);
    }
  }
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) fail(std::string("there is no CUDA device: ") + cudaGetErrorString(error), 3);
  if (devices == 0) fail("there is no CUDA device: the driver lists none", 3);

  DeviceBenchmark bench(filter, repeats);
  bench.header();
  if (only_device) return 0;
  bench.copy();
  const std::pair<kvant::Granularity, const char*> granularities[] = {
      {kvant::PerTensor{}, "tensor"},
      {kvant::PerChannel{0}, "channel, axis 0"},
      {kvant::PerChannel{1}, "channel, axis 1"},
      {kvant::PerToken{}, "token"},
      {kvant::PerGroup{-1, 128}, "group of 128"},
      {kvant::PerBlock{128, 128}, "block of 128 x 128"},
  };
  const ElementKind reals[] = {ElementKind::f32, ElementKind::f16, ElementKind::bf16};
  for (const kvant::ElementwiseOperator& facts : kvant::kElementwiseOperators)
    for (const ElementKind real : reals)
      for (const auto& [granularity, where] : granularities) bench.elementwise(facts.op, real, granularity, where);
  for (const ElementKind real : reals)
    for (const auto& [granularity, where] : granularities) bench.dynamic_range(real, granularity, where);
  for (const std::int64_t n : {4096, 14336})
    for (const std::int64_t m : {1, 16, 128, 4096}) bench.linear(m, n, 4096);
}
