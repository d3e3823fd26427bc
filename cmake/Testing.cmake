# replayssm_test(name SOURCES a.cpp ... LIBS lib ... [SLOW]): one gtest binary; every test case of it
# is a ctest case. SLOW gives it the label `slow`; the sanitizer run takes the quick rest.
find_package(GTest REQUIRED)
include(GoogleTest)

# What the sanitizer run builds.
add_custom_target(quick_tests)

function(replayssm_test name)
  cmake_parse_arguments(T "SLOW" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBS} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE REPLAYSSM_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    REPLAYSSM_BINARY_DIR="${CMAKE_BINARY_DIR}")
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
