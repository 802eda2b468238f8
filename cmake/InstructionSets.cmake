# The one place of compiler flags. -ffp-contract=off everywhere: an fma happens where the source says so. The
# baseline is x86-64-v2; each instruction set's flags are on its own file alone.
set(LLMI_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wvla)
if(LLMI_WERROR)
  list(APPEND LLMI_WARNINGS -Werror)
endif()

target_compile_options(llmi_core PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${LLMI_WARNINGS}>)
target_compile_options(llmi_core PUBLIC
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off> $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno> $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections>)
target_compile_options(llmi_core PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O3>)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(llmi_core PUBLIC $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v2> $<$<COMPILE_LANGUAGE:CXX>:-mtune=generic>)
  # Template sizes are ints there, which -Wsign-conversion takes for risks.
  # prefetchw: where a processor has AVX2 and not this hint, it does nothing.
  set(LLMI_AVX2_FLAGS -Wno-sign-conversion -mprfchw -mavx2 -mfma -mf16c -mbmi2)
  set(LLMI_AVX512_FLAGS ${LLMI_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512
      -Wno-maybe-uninitialized -Wno-uninitialized)  # GCC bug 105593, in its own avx512fintrin.h
  function(llmi_add_table name)
    target_sources(llmi_core PRIVATE csrc/kernels/cpu/${name}/kernels.cc)
    set_source_files_properties(csrc/kernels/cpu/${name}/kernels.cc PROPERTIES COMPILE_OPTIONS "${ARGN}" SKIP_PRECOMPILE_HEADERS ON)
  endfunction()
  llmi_add_table(avx2 ${LLMI_AVX2_FLAGS})
  llmi_add_table(avx_vnni ${LLMI_AVX2_FLAGS} -mavxvnni)
  llmi_add_table(avx512 ${LLMI_AVX512_FLAGS})
  llmi_add_table(avx512_bf16 ${LLMI_AVX512_FLAGS} -mavx512bf16)
endif()

if(LLMI_SANITIZE)
  target_compile_options(llmi_core PUBLIC -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1)
  target_link_options(llmi_core PUBLIC -fsanitize=address,undefined)
endif()
