// Polynomials by Horner's rule, one fused multiply-add for each coefficient but the last.
#pragma once

#include "base/inline.h"

namespace kvant::semantics {

// c0 + c1 x + c2 x^2 + …
template <class L>
KVANT_INLINE typename L::F polynomial(typename L::F, typename L::C last) {
  return L::set(last);
}
template <class L, class... More>
KVANT_INLINE typename L::F polynomial(typename L::F x, typename L::C c0, typename L::C c1, More... more) {
  return L::fma(polynomial<L>(x, c1, more...), x, L::set(c0));
}

}  // namespace kvant::semantics
