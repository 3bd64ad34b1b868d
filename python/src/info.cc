// kvant.info(): what this build has and this machine runs.
#include <pybind11/stl.h>

#include <span>
#include <string>
#include <vector>

#include "functions.h"
#include "kvant/build_info.h"
#include "kvant/version.h"
#include "names.h"
#include "threads.h"

namespace kvant::python {
namespace {

std::vector<std::string> dtype_names(std::span<const Dtype> dtypes) {
  std::vector<std::string> names;
  for (const Dtype& dtype : dtypes) names.emplace_back(dtype.name);
  return names;
}

// The limits of every integer code type by its name.
py::dict code_ranges() {
  py::dict ranges;
  for (const Dtype& dtype : code_dtypes())
    if (!has_float_grid(dtype.kind))
      ranges[py::str(dtype.name.data())] = py::make_tuple(code_range(dtype.kind).min, code_range(dtype.kind).max);
  return ranges;
}

py::dict info() {
  const Stream stream = current_stream();
  const BuildInfo build = build_info();
  std::vector<std::string> available;
  for (const BuildInfo::InstructionSet& set : build.instruction_sets)
    if (set.runs_here) available.emplace_back(name(set.arch));
  const auto chosen = default_isa();
  check(chosen.status());  // KVANT_FORCE_ISA names what this machine lacks
  py::dict facts;
  facts["version"] = std::string(version());
  facts["isa"] = std::string(name(*chosen));
  facts["isas"] = available;
  facts["threads"] = stream.threads();
  facts["backends"] = std::vector<std::string>{"cpu"};
#if defined(__clang__)
  facts["compiler"] = "Clang " __clang_version__;
#else
  facts["compiler"] = "GCC " __VERSION__;
#endif
  facts["float_dtypes"] = dtype_names(float_dtypes());
  facts["code_dtypes"] = dtype_names(code_dtypes());
  facts["system_libraries"] = std::vector<std::string>{"libstdc++.so.6", "libtbb.so.12"};
  return facts;
}

}  // namespace

void register_info(py::module_& module) {
  module.attr("version") = std::string(version());
  module.attr("code_ranges") = code_ranges();
  module.def(
      "code_dtype", [](py::handle dtype) { return dtype_name(code_kind(dtype).kind); }, py::arg("dtype"),
      py::pos_only(), "The name of a code type, however it was given.");
  module.def(
      "info", &info,
      "What this build has and this machine runs, as a dict: version, isa (the instruction set that plans get),\n"
      "isas (those that can be requested), threads, backends, compiler, dtypes and system libraries.\n\n"
      ">>> info()[\"float_dtypes\"]\n"
      "['float32', 'float64', 'float16', 'bfloat16']\n");
}

}  // namespace kvant::python
