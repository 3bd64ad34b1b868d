// FP8 keys and values in the KV cache, in the compressed-tensors layout: beside kv_cache_scheme in config.json every
// attention layer A has A.k_scale and A.v_scale, [1]. Keys are what the cache holds of them: after their norms and the
// rotation. In files of statistics A.k and A.v have what was seen of them, as modules have of their inputs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/checkpoint.h"
#include "kvant/element.h"

namespace kvant::format {

inline constexpr ElementKind kCacheCode = ElementKind::e4m3;
// What loaders call an attention layer whose scales they read.
inline constexpr std::string_view kCachedAttention = "self_attn";

enum class CacheHalf : std::uint8_t { keys, values };
inline constexpr std::array kCacheHalves = {CacheHalf::keys, CacheHalf::values};

constexpr std::string_view name(CacheHalf half) { return half == CacheHalf::keys ? "keys" : "values"; }

// "model.layers.0.self_attn" of "model.layers.0.self_attn.k_proj.weight"; empty: the tensor is of no such layer.
std::string_view cached_attention_of(std::string_view tensor);

// "model.layers.0.self_attn.k_proj", the linear that makes the keys where they have one of their own.
std::string cache_projection(std::string_view attention, CacheHalf half);
// "model.layers.0.self_attn.k_scale"
std::string cache_scale_name(std::string_view attention, CacheHalf half);
// "model.layers.0.self_attn.k"
std::string cache_statistics_module(std::string_view attention, CacheHalf half);

struct OfCache {
  std::string_view attention;
  CacheHalf half;
};
// What the two above say of a name; nothing: it is of something else. ModelOpt has its scales one level below, in
// "model.layers.0.self_attn.k_proj.k_scale", and loaders take both.
std::optional<OfCache> cache_scale_of(std::string_view tensor);
// The scale of an attention layer by either name; null: it has none.
const io::TensorPlace* find_cache_scale(const io::Checkpoint& checkpoint, std::string_view attention, CacheHalf half);
std::optional<OfCache> cache_statistics_of(std::string_view module);

}  // namespace kvant::format
