#include "format/kv_cache.h"

#include "base/text.h"
#include "format/module_name.h"

namespace kvant::format {
namespace {

constexpr std::string_view kScaleSuffix = "_scale";

constexpr std::string_view kProjectionSuffix = "_proj";

constexpr std::string_view letter(CacheHalf half) { return half == CacheHalf::keys ? "k" : "v"; }

std::optional<OfCache> of_cache(std::string_view name, std::string_view suffix) {
  const std::string_view attention = parent_of(name);
  std::string_view last = last_component(name);
  if (last_component(attention) != kCachedAttention || !last.ends_with(suffix)) return std::nullopt;
  last.remove_suffix(suffix.size());
  for (const CacheHalf half : kCacheHalves)
    if (last == letter(half)) return OfCache{attention, half};
  return std::nullopt;
}

}  // namespace

std::string_view cached_attention_of(std::string_view tensor) {
  const std::string_view attention = parent_of(parent_of(tensor));
  return last_component(attention) == kCachedAttention ? attention : std::string_view();
}

std::string cache_projection(std::string_view attention, CacheHalf half) {
  return base::text("{}.{}{}", attention, letter(half), kProjectionSuffix);
}

std::string cache_scale_name(std::string_view attention, CacheHalf half) {
  return base::text("{}.{}{}", attention, letter(half), kScaleSuffix);
}

std::string cache_statistics_module(std::string_view attention, CacheHalf half) {
  return base::text("{}.{}", attention, letter(half));
}

std::optional<OfCache> cache_scale_of(std::string_view tensor) {
  if (const auto of_attention = of_cache(tensor, kScaleSuffix)) return of_attention;
  const auto of_projection = of_cache(parent_of(tensor), kProjectionSuffix);
  if (!of_projection || last_component(tensor) != base::text("{}{}", letter(of_projection->half), kScaleSuffix))
    return std::nullopt;
  return of_projection;
}

const io::TensorPlace* find_cache_scale(const io::Checkpoint& checkpoint, std::string_view attention, CacheHalf half) {
  for (const std::string& tensor :
       {cache_scale_name(attention, half),
        base::text("{}.{}{}", cache_projection(attention, half), letter(half), kScaleSuffix)})
    if (const auto found = checkpoint.tensors().find(tensor); found != checkpoint.tensors().end())
      return &found->second;
  return nullptr;
}

std::optional<OfCache> cache_statistics_of(std::string_view module) { return of_cache(module, {}); }

}  // namespace kvant::format
