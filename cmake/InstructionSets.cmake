# The one place of compiler flags. -ffp-contract=off everywhere: an fma happens where the source says so. The
# baseline is x86-64-v2; each instruction set's flags are on its own files alone.
add_library(llmi_flags INTERFACE)
target_include_directories(llmi_flags INTERFACE ${PROJECT_SOURCE_DIR}/csrc)
target_compile_options(llmi_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off> $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno> $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(llmi_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v2> $<$<COMPILE_LANGUAGE:CXX>:-mtune=generic>)
endif()
if(LLMI_SANITIZE)
  target_compile_options(llmi_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1)
  target_link_options(llmi_flags INTERFACE -fsanitize=address,undefined)
endif()

# A library of the core's code, by its warnings and its level of optimisation.
function(llmi_add_library name kind)
  add_library(${name} ${kind} ${ARGN})
  target_link_libraries(${name} PUBLIC llmi_flags)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${LLMI_WARNINGS}>)
  target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O3>)
endfunction()

# The tables of this architecture's instruction sets. They are the longest files: a library that comes first is compiled first.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Template sizes are ints there, which -Wsign-conversion takes for risks.
  # prefetchw: where a processor has AVX2 and not this hint, it does nothing.
  set(LLMI_AVX2_FLAGS -Wno-sign-conversion -mprfchw -mavx2 -mfma -mf16c -mbmi2)
  set(LLMI_AVX512_FLAGS ${LLMI_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512
      -Wno-maybe-uninitialized -Wno-uninitialized)  # GCC bug 105593, in its own avx512fintrin.h
  llmi_add_library(llmi_tables OBJECT)
  function(llmi_add_kernels file)
    target_sources(llmi_tables PRIVATE kernels/cpu/${file}.cc)
    set_source_files_properties(kernels/cpu/${file}.cc PROPERTIES COMPILE_OPTIONS "${ARGN}")
  endfunction()
  llmi_add_kernels(avx512/quantized_kernels ${LLMI_AVX512_FLAGS})
  llmi_add_kernels(avx2/quantized_kernels ${LLMI_AVX2_FLAGS})
  llmi_add_kernels(avx_vnni/kernels ${LLMI_AVX2_FLAGS} -mavxvnni)
  llmi_add_kernels(avx512/kernels ${LLMI_AVX512_FLAGS})
  llmi_add_kernels(avx2/kernels ${LLMI_AVX2_FLAGS})
  llmi_add_kernels(avx512_bf16/kernels ${LLMI_AVX512_FLAGS} -mavx512bf16)
  set(LLMI_TABLES $<TARGET_OBJECTS:llmi_tables>)
endif()
