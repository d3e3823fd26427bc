# replayssm_isa_sources(target base): compiles <base>_portable.cpp, <base>_avx2.cpp and
# <base>_avx512.cpp, each with the flags of its instruction set. Each file includes one body; the
# set is chosen at run time.
set(REPLAYSSM_ISA_LEVEL -O3)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # at -O3 one such file takes minutes
  set(REPLAYSSM_ISA_LEVEL -O1)
endif()
# Wide vectors never cross a call, so their calling convention does not matter.
set(REPLAYSSM_PORTABLE_FLAGS ${REPLAYSSM_ISA_LEVEL} -Wno-psabi)
set(REPLAYSSM_AVX2_FLAGS ${REPLAYSSM_ISA_LEVEL} -march=x86-64-v3 -mprefer-vector-width=256)
# g++ 12 warns of its own headers' _mm512_undefined_ps().
set(REPLAYSSM_AVX512_FLAGS ${REPLAYSSM_ISA_LEVEL} -march=x86-64-v4 -mprefer-vector-width=512
  -Wno-uninitialized -Wno-maybe-uninitialized)

function(replayssm_isa_sources target base)
  foreach(isa portable avx2 avx512)
    string(TOUPPER ${isa} upper)
    target_sources(${target} PRIVATE ${base}_${isa}.cpp)
    set_source_files_properties(${base}_${isa}.cpp PROPERTIES COMPILE_OPTIONS
      "${REPLAYSSM_${upper}_FLAGS}")
  endforeach()
endfunction()
