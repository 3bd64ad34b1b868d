#include "io/hash.h"

#include <xxhash.h>

#include <new>

#include "base/text.h"

namespace kvant::io {
namespace {

XXH3_state_t* state_of(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

void Hash::Free::operator()(void* state) const { XXH3_freeState(state_of(state)); }

Hash::Hash() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_of(state_.get()));
}

void Hash::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_of(state_.get()), bytes.data(), bytes.size());
}

std::uint64_t Hash::value() const { return XXH3_64bits_digest(state_of(state_.get())); }

std::string Hash::text() const { return base::text("{:016x}", value()); }

}  // namespace kvant::io
