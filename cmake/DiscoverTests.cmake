# muses_discover_tests(<target> LABELS <label>… TIMEOUT <s> SLOW_TIMEOUT <s> ENVIRONMENT <VAR=value>…)
#
# One ctest entry for each doctest case of the program, under the case's own name. Labels: the given ones, and the case's test
# suite (so `ctest -L slow` runs what is in the suite "slow", and `ctest -LE slow` the rest). As doctest_discover_tests does, the
# program is asked for its cases right after it was linked; unlike it, once and not once a case, and in the same way for every
# version of doctest. A program without a single case fails the build: it would prove nothing.
function(muses_discover_tests target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;SLOW_TIMEOUT" "LABELS;ENVIRONMENT")
    set(list_file "${CMAKE_CURRENT_BINARY_DIR}/${target}_cases.cmake")
    set(include_file "${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake")
    add_custom_command(TARGET ${target} POST_BUILD
        COMMAND "${CMAKE_COMMAND}" -D "program=$<TARGET_FILE:${target}>" -D "list_file=${list_file}"
            -P "${PROJECT_SOURCE_DIR}/cmake/ListCases.cmake"
        BYPRODUCTS "${list_file}"
        VERBATIM)
    # ctest reads this, and the list that it includes; a program that was never built is a red test, not a silent gap.
    file(WRITE "${include_file}" "\
set(case_labels [==[${arg_LABELS}]==])
set(case_timeout ${arg_TIMEOUT})
set(case_slow_timeout ${arg_SLOW_TIMEOUT})
set(case_environment [==[${arg_ENVIRONMENT}]==])
set(case_folder [==[${CMAKE_CURRENT_BINARY_DIR}]==])
if(EXISTS [==[${list_file}]==])
    include([==[${list_file}]==])
else()
    add_test([==[${target} is not built]==] [==[${target} is not built]==])
endif()
")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include_file}")
endfunction()
