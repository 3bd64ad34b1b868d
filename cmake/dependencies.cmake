# What is missing is named at once, by the packages that have it.
find_package(TBB QUIET)
# The library carries its own fmt, so that a program that links it needs no other. The rest links the shared one:
# compiling fmt once more takes 4 of the 6 seconds of a small file.
find_package(fmt QUIET)
find_package(tl-expected QUIET)
find_path(FP16_INCLUDE_DIR fp16.h)
set(missing "")
set(packages "")
foreach(need "TBB_FOUND|oneTBB|libtbb-dev" "fmt_FOUND|fmt|libfmt-dev" "tl-expected_FOUND|tl::expected|libexpected-dev"
             "FP16_INCLUDE_DIR|FP16|libfp16-dev")
  string(REPLACE "|" ";" need "${need}")
  list(GET need 0 found)
  if(NOT ${found})
    list(GET need 1 name)
    list(GET need 2 package)
    list(APPEND missing ${name})
    list(APPEND packages ${package})
  endif()
endforeach()
if(missing)
  list(JOIN missing ", " missing)
  list(JOIN packages " " packages)
  message(FATAL_ERROR "kvant needs the headers of ${missing}. On Debian and Ubuntu: apt-get install ${packages}")
endif()

# Found here, because what find_package() makes is known below the folder that calls it only, and tests use them too.
if(KVANT_TOOL)
  find_package(nlohmann_json REQUIRED)
  find_package(CLI11 REQUIRED)
endif()
