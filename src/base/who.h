// Who refuses: the beginning of a sentence ("quantize_per_group"), made only where something is refused. Making it
// takes longer than all the checks of a plan.
#pragma once

#include <concepts>
#include <string>

namespace kvant::base {

// A reference to something that is called for the words; that must live as long.
class Who {
 public:
  template <class Function>
  requires std::invocable<const Function&> Who(const Function& function)  // NOLINT: a callable is a name
      : context_(&function),
        words_([](const void* context) { return std::string((*static_cast<const Function*>(context))()); }) {}

  Who(const char* words)  // NOLINT: and so is a name
      : context_(words), words_([](const void* context) { return std::string(static_cast<const char*>(context)); }) {}

  std::string operator()() const { return words_(context_); }

 private:
  const void* context_;
  std::string (*words_)(const void*);
};

}  // namespace kvant::base
