#!/bin/sh
# install.sh BUILD SOURCE CXX: installs the build into a temporary prefix and builds and runs an example against it, once
# with find_package and once with pkg-config.
set -eu
build=$1 source=$2 cxx=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$build" --prefix "$folder/prefix" >/dev/null

cat > "$folder/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(kvant REQUIRED)
add_executable(consumer $source/examples/quantize_tensor.cc)
target_link_libraries(consumer PRIVATE kvant::kvant)
END
cmake -S "$folder" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$folder/build" >/dev/null
"$folder/build/consumer"

config=$(find "$folder/prefix" -name pkgconfig -type d)
# The prefix moved with the installation, so pkg-config is told where it is.
flags=$(PKG_CONFIG_PATH="$config" pkg-config --define-variable=prefix="$folder/prefix" --cflags --libs --static kvant)
# shellcheck disable=SC2086
"$cxx" -std=c++20 "$source/examples/quantize_tensor.cc" $flags -o "$folder/with_pkg_config"
LD_LIBRARY_PATH="$(dirname "$config")" "$folder/with_pkg_config"
