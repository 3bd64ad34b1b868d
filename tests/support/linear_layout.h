// What tests of all linear layers share: where the operands lie, a plan with its buffers, and how outputs are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ios>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/kernel_log.h"
#include "tests/support/linear_reference.h"

namespace kvant::tests {

// The shapes that act_scale and act_zero_point may have.
enum class TokenForm { flat, leading, leading_and_one };

struct LinearLayout {
  bool packed = false;
  std::int64_t spare_rows = 0;                                      // of max_rows, beyond M
  std::optional<std::vector<std::int64_t>> leading = std::nullopt;  // sizes before the last; M of them in all
  TokenForm token_form = TokenForm::flat;
  std::int64_t activation_gap = 0;  // elements between rows
  std::int64_t weight_gap = 0;
  std::int64_t output_gap = 0;
  std::size_t shift = 0;     // bytes that every buffer begins beside an aligned address
  bool at_page_end = false;  // every buffer ends at a page that may not be touched

  // `rows` of them, of `last` elements each.
  Shape shape(std::int64_t rows, std::int64_t last) const {
    std::vector<std::int64_t> sizes = leading.value_or(std::vector<std::int64_t>{rows});
    sizes.push_back(last);
    return Shape(std::span<const std::int64_t>(sizes));
  }
  static std::int64_t stride(std::int64_t row, std::int64_t gap) { return gap == 0 ? 0 : row + gap; }

  std::string text() const {
    const auto add = [](const char* what, std::int64_t value) {
      return value == 0 ? std::string() : std::string(what) + std::to_string(value);
    };
    return (packed ? "packed" : "raw") + add(" spare rows ", spare_rows) +
           add(" rank ", leading ? static_cast<std::int64_t>(leading->size()) + 1 : 0) +
           add(" token form ", static_cast<std::int64_t>(token_form)) + add(" activation gap ", activation_gap) +
           add(" weight gap ", weight_gap) + add(" output gap ", output_gap) +
           add(" shift ", static_cast<std::int64_t>(shift)) + (at_page_end ? " at the end of a page" : "");
  }
};

// Memory of one operand, with a mark on both sides that must still be there afterwards, or right before a page that may
// not be touched.
class Place {
 public:
  static constexpr std::byte kMark{0xA5};

  Place(std::size_t bytes, const LinearLayout& layout) : bytes_(bytes) {
    if (layout.at_page_end) {
      page_ = std::make_unique<GuardedBuffer>(static_cast<std::int64_t>(bytes));
      data_ = page_->data();
    } else {
      memory_.assign(bytes + layout.shift + 2 * kMargin, kMark);
      data_ = memory_.data() + kMargin + layout.shift;
    }
    std::fill_n(data_, bytes_, kMark);
  }
  // Rows of a dense tensor with `stride` bytes from one to the next, none behind the last.
  Place(std::span<const std::byte> dense, std::int64_t rows, std::int64_t row, std::int64_t stride,
        const LinearLayout& layout)
      : Place(rows == 0 ? 0 : static_cast<std::size_t>((rows - 1) * stride + row), layout) {
    if (row == 0) return;
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy_n(dense.begin() + static_cast<std::ptrdiff_t>(r * row), row, data_ + r * stride);
  }
  Place(std::span<const std::byte> dense, const LinearLayout& layout)
      : Place(dense, 1, static_cast<std::int64_t>(dense.size()), static_cast<std::int64_t>(dense.size()), layout) {}

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  bool margins_are_untouched() const {
    if (memory_.empty()) return true;
    const auto inside = data_ - memory_.data();
    return std::all_of(memory_.begin(), memory_.begin() + inside, is_mark) &&
           std::all_of(memory_.begin() + inside + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), is_mark);
  }
  static bool is_mark(std::byte b) { return b == kMark; }

 private:
  static constexpr std::size_t kMargin = 64;
  std::vector<std::byte> memory_;
  std::unique_ptr<GuardedBuffer> page_;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

// A plan with everything that a run needs, so that run() can be called again and under other circumstances. The layers
// that derive from it put their other operands into args_.
template <class Plan, class Args, class PackedWeights>
class PreparedLayer {
 public:
  PreparedLayer(const PreparedLayer&) = delete;
  PreparedLayer& operator=(const PreparedLayer&) = delete;

  const Status& status() const { return status_; }  // of select() and pack()
  const Plan& plan() const { return *plan_; }
  const Args& args() const { return args_; }

  Status run(const Stream& stream) const { return plan_->run(stream, {scratch_->data(), scratch_->size()}, args_); }

  void forget_output() const { std::fill_n(output_.data(), output_.size(), Place::kMark); }
  std::vector<std::byte> output() const {
    std::vector<std::byte> dense;
    for (std::int64_t r = 0; r < rows_; ++r)
      dense.insert(dense.end(), output_.data() + r * stride_, output_.data() + r * stride_ + row_);
    return dense;
  }

  // Nothing was written but rows of the output and the scratch.
  bool kept_to_its_rows() const {
    for (std::int64_t r = 0; r + 1 < rows_; ++r)
      if (!std::all_of(output_.data() + r * stride_ + row_, output_.data() + (r + 1) * stride_, Place::is_mark))
        return false;
    return output_.margins_are_untouched() && scratch_->margins_are_untouched();
  }

 protected:
  PreparedLayer(const Result<Plan>& plan, std::int64_t rows, std::int64_t columns, ElementKind output,
                const LinearLayout& layout)
      : rows_(rows),
        row_(columns * static_cast<std::int64_t>(width_of(output))),
        stride_((columns + layout.output_gap) * static_cast<std::int64_t>(width_of(output))),
        output_(rows == 0 ? 0 : static_cast<std::size_t>((rows - 1) * stride_ + row_), layout),
        status_(plan.status()) {
    if (!plan.ok()) return;
    plan_ = *plan;
    scratch_.emplace(plan_->workspace_size(), layout);
    std::fill_n(scratch_->data(), scratch_->size(), std::byte{0xFF});  // NaN in every kind
    args_.output = {output_.data(), output, layout.shape(rows, columns),
                    LinearLayout::stride(columns, layout.output_gap)};
  }

  // Raw, or packed; then the raw bytes are not needed any more.
  void put_weight(const AnyRef& weight, const Place& place, const LinearLayout& layout, const Stream& stream,
                  const PlanPreference& preference) {
    if (!layout.packed) {
      args_.weight = weight;
      return;
    }
    const auto packed = PackedWeights::pack(stream, weight, preference);
    status_ = packed.status();
    if (!packed.ok()) return;
    packed_ = *packed;
    args_.packed_weight = &*packed_;
    std::fill_n(place.data(), place.size(), std::byte{0x5A});
  }

  Args args_;

 private:
  std::int64_t rows_, row_, stride_;  // of the output; the last two in bytes
  Place output_;
  std::optional<Place> scratch_;
  std::optional<Plan> plan_;
  std::optional<PackedWeights> packed_;
  Status status_;
};

// The first output that differs, with its place and numbers; any NaN equals any NaN.
template <class Case>
testing::AssertionResult equal_outputs(const Case& c, ElementKind kind, std::span<const std::byte> got,
                                       std::span<const std::byte> want) {
  const std::int64_t at = first_difference(got, want, kind);
  if (at == -1) return testing::AssertionSuccess();
  if (got.size() != want.size() || c.n == 0)
    return testing::AssertionFailure() << got.size() << " bytes, wanted " << want.size() << " in " << c.text();
  const auto offset = static_cast<std::size_t>(at) * width_of(kind);
  const auto number = [kind](const std::byte* one) {
    return is_float(kind) ? get_float(one, kind) : static_cast<double>(widened({one, 1}, kind)[0]);
  };
  return testing::AssertionFailure() << "y[" << at / c.n << ", " << at % c.n << "] is " << std::hexfloat
                                     << number(&got[offset]) << ", wanted " << number(&want[offset]) << " in "
                                     << c.text();
}

// Runs a case once and compares.
template <class Case>
testing::AssertionResult is_right(const Case& c, std::span<const std::byte> want, ArchSku isa,
                                  const LinearLayout& layout, const Stream& stream = Stream::cpu(1)) {
  const typename Case::Prepared linear(c, {.isa = isa}, layout, stream);
  const auto where = [&] {
    return " (" + std::string(name(isa)) + ", " + layout.text() + ", " + std::to_string(stream.threads()) + " threads)";
  };
  if (!linear.status().ok())
    return testing::AssertionFailure() << linear.status().message() << " in " << c.text() << where();
  if (const Status done = linear.run(stream); !done.ok())
    return testing::AssertionFailure() << done.message() << " in " << c.text() << where();
  note_kernel(linear.plan().sku());
  if (testing::AssertionResult result = c.equal(linear.output(), want); !result) return result << where();
  if (!linear.kept_to_its_rows())
    return testing::AssertionFailure() << "wrote beside its rows in " << c.text() << where();
  return testing::AssertionSuccess();
}

}  // namespace kvant::tests
