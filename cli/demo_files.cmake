# Makes demo_files.cc, which has the files of data/demo_model/ in it, in the order that demo_files.h promises.
set(folder ${PROJECT_SOURCE_DIR}/data/demo_model)
set(paths)
set(number 0)
# The C++ expression of a file, in `to`; the assembly that it needs is appended.
macro(kvant_demo_file to name)
  set(symbol kvant_demo_file_${number})
  math(EXPR number "${number} + 1")
  list(APPEND paths ${folder}/${name})
  string(APPEND KVANT_DEMO_ASSEMBLY
    "asm(R\"(.pushsection .rodata\n"
    "  .balign 16\n  .hidden ${symbol}\n  .globl ${symbol}\n${symbol}:\n  .incbin \"${folder}/${name}\"\n"
    "  .hidden ${symbol}_end\n  .globl ${symbol}_end\n${symbol}_end:\n.popsection)\");\n"
    "extern \"C\" [[gnu::visibility(\"hidden\")]] const char ${symbol}[], ${symbol}_end[];\n\n")
  set(${to} "DemoFile{\"${name}\", between(${symbol}, ${symbol}_end)}")
endmacro()
foreach(name model.safetensors tokenizer.json tokenizer_config.json config.json)
  kvant_demo_file(row ${name})
  string(APPEND KVANT_DEMO_ROWS "      ${row},\n")
endforeach()
kvant_demo_file(KVANT_DEMO_HELD_OUT held-out.txt)
kvant_demo_file(KVANT_DEMO_CALIBRATION calibration.txt)
configure_file(demo_files.cc.in ${PROJECT_BINARY_DIR}/demo_files.cc @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/demo_files.cc PROPERTIES OBJECT_DEPENDS "${paths}")
target_sources(kvant_commands PRIVATE ${PROJECT_BINARY_DIR}/demo_files.cc)
