// A plan on a GPU against the scalar plan on the CPU: the same arguments, in host memory, are run by both, by the GPU
// on copies in its own memory, and every byte that either wrote must be the other's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ios>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/kvant.h"
#include "tests/cuda/execution.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/kernel_log.h"

namespace kvant::tests {

// From the first element of a view to the end of its last row, gaps included.
inline std::size_t extent(const AnyRef& view) {
  const std::int64_t elements = view.shape.element_count().value();
  if (view.data == nullptr || elements == 0) return 0;
  const std::int64_t row = view.shape.row_length(), rows = elements / row;
  const std::int64_t step = row_bytes(view.kind, view.row_stride == 0 ? row : view.row_stride);
  return static_cast<std::size_t>((rows - 1) * step + row_bytes(view.kind, row));
}

struct NamedOutput {
  std::string_view name;
  AnyMut view;
};
inline std::vector<NamedOutput> outputs_of(const ElementwiseArgs& args) { return {{"output", args.output}}; }
inline std::vector<NamedOutput> outputs_of(const AnyLinearArgs& args) { return {{"output", args.output}}; }
inline std::vector<NamedOutput> outputs_of(const AnyDynamicRangeQuantizeArgs& args) {
  return {{"scale_out", args.scale_out},
          {"zero_point_out", args.zero_point_out},
          {"global_scale_out", args.global_scale_out},
          {"output", args.output}};
}
inline std::vector<NamedOutput> outputs_of(const AnyRangeArgs& args) {
  return {{"min_out", args.min_out}, {"max_out", args.max_out}, {"max_abs_out", args.max_abs_out}};
}

// What lies in the outputs, one after the other.
using Contents = std::vector<std::vector<std::byte>>;
inline Contents contents_of(const std::vector<NamedOutput>& outputs) {
  Contents all;
  for (const NamedOutput& output : outputs) {
    const auto* begin = static_cast<const std::byte*>(output.view.data);
    all.emplace_back(begin, begin + extent(output.view));
  }
  return all;
}
inline void put_back(const Contents& contents, const std::vector<NamedOutput>& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (!contents[i].empty()) std::memcpy(outputs[i].view.data, contents[i].data(), contents[i].size());
}

// How far, in elements of their own, tensors begin behind an address that suits every type.
struct Shifts {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
};

// Tensors of the host, in device memory that ends where they do.
class DeviceCopies {
 public:
  explicit DeviceCopies(const Shifts& shifts) : shifts_(shifts) {}

  AnyRef put(const AnyRef& host) { return {copy_of(host, false), host.kind, host.shape, host.row_stride}; }
  AnyMut put(const AnyMut& host) { return {copy_of(host, true), host.kind, host.shape, host.row_stride}; }
  AnyParameter put(const AnyParameter& host) {
    if (host.is_scalar()) return host;  // goes into the launch, from the host
    return AnyParameter(put(AnyRef{host.data(), host.kind(), host.shape(), host.row_stride()}));
  }

  // The outputs come first: an input that is the same memory shares theirs.
  ElementwiseArgs put(const ElementwiseArgs& host) {
    ElementwiseArgs args = host;
    args.output = put(host.output);
    args.input = put(host.input);
    args.grad_output = put(host.grad_output);
    args.scale = put(host.scale);
    args.zero_point = put(host.zero_point);
    args.global_scale = put(host.global_scale);
    return args;
  }
  AnyDynamicRangeQuantizeArgs put(const AnyDynamicRangeQuantizeArgs& host) {
    return {.input = put(host.input),
            .output = put(host.output),
            .scale_out = put(host.scale_out),
            .zero_point_out = put(host.zero_point_out),
            .global_scale = put(host.global_scale),
            .global_scale_out = put(host.global_scale_out)};
  }
  AnyRangeArgs put(const AnyRangeArgs& host) {
    return {.input = put(host.input),
            .min_out = put(host.min_out),
            .max_out = put(host.max_out),
            .max_abs_out = put(host.max_abs_out)};
  }
  AnyLinearArgs put(const AnyLinearArgs& host) {
    AnyLinearArgs args = host;
    args.activation = put(host.activation);
    args.act_scale = put(host.act_scale);
    args.act_zero_point = put(host.act_zero_point);
    args.smooth = put(host.smooth);
    args.weight = put(host.weight);
    args.weight_scale = put(host.weight_scale);
    args.weight_zero_point = put(host.weight_zero_point);
    args.bias = put(host.bias);
    args.output = put(host.output);
    return args;
  }

  // Starts as NaN in every kind, and at any address.
  Workspace scratch(std::size_t bytes) {
    if (bytes == 0) return {};
    scratch_ = std::make_unique<DeviceBuffer>(bytes, shifts_.outputs);
    scratch_->fill(std::byte{0xFF});
    return {scratch_->data(), bytes};
  }

  // Copies the outputs to the host. False if an input is not what it was.
  bool fetch() {
    bool kept = true;
    for (Copy& copy : copies_) {
      const std::vector<std::byte> now = copy.buffer->download();
      if (copy.written && copy.bytes != 0)
        std::memcpy(copy.host, now.data(), copy.bytes);
      else
        kept = kept && (copy.bytes == 0 ? now[0] == kGap : std::memcmp(copy.host, now.data(), copy.bytes) == 0);
    }
    return kept;
  }

 private:
  struct Copy {
    void* host;  // an input's is only read
    std::size_t bytes;
    bool written;
    std::unique_ptr<DeviceBuffer> buffer;
  };

  std::byte* copy_of(const AnyRef& host, bool written) {
    if (host.data == nullptr) return nullptr;
    const std::size_t bytes = extent(host);
    for (Copy& copy : copies_)
      if (bytes != 0 && copy.host == host.data && copy.bytes == bytes) {
        copy.written = copy.written || written;
        return copy.buffer->data();
      }
    const std::size_t width = unit_bytes(host.kind);
    const std::size_t shift = (written ? shifts_.outputs : shifts_.inputs) * width;
    // A tensor without elements has an address too: a null one might count as not given.
    auto buffer = std::make_unique<DeviceBuffer>(std::max<std::size_t>(1, bytes), shift);
    buffer->fill(kGap);
    if (bytes != 0) buffer->upload({static_cast<const std::byte*>(host.data), bytes});
    copies_.push_back({const_cast<void*>(host.data), bytes, written, std::move(buffer)});
    return copies_.back().buffer->data();
  }

  Shifts shifts_;
  std::vector<Copy> copies_;
  std::unique_ptr<DeviceBuffer> scratch_;
};

struct DeviceRun {
  std::optional<std::uint32_t> turn = std::nullopt;  // of the ways to execute; nothing: all of them
  Numerics numerics = Numerics::exact;
  Shifts shifts = {};
  ArchSku isa = ArchSku::sm_80;
};

// The first element of an output that differs, with its place and both numbers; gaps between rows count.
inline testing::AssertionResult same_contents(const NamedOutput& output, std::span<const std::byte> got,
                                              std::span<const std::byte> want) {
  const ElementKind kind = output.view.kind;
  const std::int64_t at = first_difference(got, want, kind);
  if (at == -1) return testing::AssertionSuccess();
  const std::size_t width = unit_bytes(kind);
  const std::int64_t row = output.view.row_stride == 0 ? output.view.shape.row_length() : output.view.row_stride;
  const std::int64_t per_row = row_bytes(kind, row) / static_cast<std::int64_t>(width);  // packed codes: bytes
  const std::size_t offset = static_cast<std::size_t>(at) * width;
  const auto number = [&](std::span<const std::byte> bytes) {
    if (is_float(kind)) return get_float(&bytes[offset], kind);
    std::int32_t whole = std::to_integer<std::int32_t>(bytes[offset]);
    if (kind == ElementKind::s32) std::memcpy(&whole, &bytes[offset], 4);
    return static_cast<double>(whole);
  };
  const char* what = bits_per_element(kind) < 8 ? "byte " : "element ";
  return testing::AssertionFailure() << output.name << ": " << what << at % per_row << " of row " << at / per_row
                                     << " is " << number(got) << std::hexfloat << " (" << number(got) << "), wanted "
                                     << std::defaultfloat << number(want) << std::hexfloat << " (" << number(want)
                                     << ")";
}

// Runs a device's plan on copies of `args` and brings the outputs back.
template <class Plan, class Descriptor, class Args>
testing::AssertionResult runs_on_device(const Stream& stream, const Descriptor& descriptor, const Args& args,
                                        const DeviceRun& how) {
  const auto plan = Plan::select(stream, descriptor, {.isa = how.isa, .numerics = how.numerics});
  if (!plan.ok()) return testing::AssertionFailure() << "select: " << plan.status().message();
  if (plan->sku().backend != BackendKind::cuda || plan->sku().arch != how.isa)
    return testing::AssertionFailure() << "select chose " << plan->sku().name();
  DeviceCopies device(how.shifts);
  const Args there = device.put(args);
  const Workspace scratch = device.scratch(plan->workspace_size());
  if (const Status can = plan->can_implement(there); !can.ok())
    return testing::AssertionFailure() << "can_implement: " << can.message();
  if (const Status done = plan->run(stream, scratch, there); !done.ok())
    return testing::AssertionFailure() << "run: " << done.message();
  note_kernel(plan->sku());
  if (!device.fetch()) return testing::AssertionFailure() << plan->sku().name() << " wrote to an input";
  return testing::AssertionSuccess();
}

// The outputs hold the scalar plan's results afterwards, unless something went wrong.
template <class Plan, class Descriptor, class Args>
testing::AssertionResult same_on_device(const Descriptor& descriptor, const Args& args, const std::string& text,
                                        const DeviceRun& how = {}) {
  const std::vector<NamedOutput> outputs = outputs_of(args);
  const Contents fresh = contents_of(outputs);
  const Stream cpu = Stream::cpu(1);
  const auto reference = Plan::select(cpu, descriptor, {.isa = ArchSku::scalar, .numerics = how.numerics});
  if (!reference.ok())
    return testing::AssertionFailure() << "on the CPU: " << reference.status().message() << " in " << text;
  std::vector<std::byte> scratch(reference->workspace_size(), std::byte{0xFF});
  if (const Status done = reference->run(cpu, {scratch.data(), scratch.size()}, args); !done.ok())
    return testing::AssertionFailure() << "on the CPU: " << done.message() << " in " << text;
  const Contents want = contents_of(outputs);

  // Looking for races costs so much that it is for small problems, which have all kinds of them.
  constexpr std::size_t kSmall = 16384;
  std::size_t bytes = 0;
  for (const auto& content : want) bytes += content.size();
  testing::AssertionResult result = testing::AssertionSuccess();
  for_each_execution(how.turn, bytes <= kSmall, [&](const Stream& stream, const std::string& about) {
    if (!result) return;
    put_back(fresh, outputs);
    result = runs_on_device<Plan>(stream, descriptor, args, how);
    const Contents got = contents_of(outputs);
    for (std::size_t i = 0; result && i < outputs.size(); ++i) result = same_contents(outputs[i], got[i], want[i]);
    if (!result)
      result << " in " << text << ", " << name(how.numerics) << ", shifted by " << how.shifts.inputs << " and "
             << how.shifts.outputs << ", " << about;
  });
  return result;
}

}  // namespace kvant::tests
