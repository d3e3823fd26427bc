# replayssm_test(name SOURCES a.cpp ... LIBS lib ... [SLOW]): one gtest binary; every test case of it
# is a ctest case. SLOW gives it the label `slow`; the sanitizer run takes the quick rest.
# replayssm_test_objects(name SOURCES a.cpp ... LIBS lib ...): suites that several binaries link.
find_package(GTest REQUIRED)
include(GoogleTest)

# What the sanitizer run builds.
add_custom_target(quick_tests)

# Most of a test's build is its own compilation: -O1 takes two thirds of -O2's time.
function(replayssm_test_options name)
  target_compile_definitions(${name} PRIVATE REPLAYSSM_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    REPLAYSSM_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

function(replayssm_test_objects name)
  cmake_parse_arguments(T "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} OBJECT ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBS} GTest::gtest)
  replayssm_test_options(${name})
endfunction()

function(replayssm_test name)
  cmake_parse_arguments(T "SLOW" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBS} GTest::gtest_main)
  replayssm_test_options(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(T_SLOW)
    set(label slow)
  else()
    set(label quick)
    add_dependencies(quick_tests ${name})
  endif()
  # The name of a parameter, not the bytes that gtest prints for its value.
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${label} TIMEOUT 600)
endfunction()
