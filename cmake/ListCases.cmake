# Run by muses_discover_tests after a test program was linked: asks ${program} for its cases and writes them to ${list_file} as
# ctest entries. The variables case_… in there are set by the file that includes it.
cmake_minimum_required(VERSION 3.25)

# Listing runs no test: sanitizer findings of the program's start show as a failure here, leaks at its end are not the subject.
execute_process(COMMAND "${CMAKE_COMMAND}" -E env ASAN_OPTIONS=detect_leaks=0 "${program}" --list-test-cases --reporters=xml
    OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result)
if(NOT result EQUAL 0)
    message(FATAL_ERROR "${program} does not list its cases (${result}):\n${output}${errors}")
endif()

cmake_path(GET program FILENAME program_name)
string(REPLACE ";" "\\;" output "${output}")
string(REGEX MATCHALL "<TestCase [^\n]*" cases "${output}")
set(script "")
set(seen "")
foreach(case IN LISTS cases)
    if(NOT case MATCHES " name=\"([^\"]*)\"")
        message(FATAL_ERROR "${program_name}: a case without a name: ${case}")
    endif()
    set(name "${CMAKE_MATCH_1}")
    set(suite "")
    if(case MATCHES " testsuite=\"([^\"]*)\"")
        set(suite "${CMAKE_MATCH_1}")
    endif()
    if(case MATCHES " skipped=\"true\"")
        continue()
    endif()
    string(REPLACE "&apos;" "'" name "${name}")
    string(REPLACE "&quot;" "\"" name "${name}")
    string(REPLACE "&lt;" "<" name "${name}")
    string(REPLACE "&gt;" ">" name "${name}")
    string(REPLACE "&amp;" "&" name "${name}")
    # These mean something to ctest's files or to doctest's filter, and would select another case or none. A comma does too, but
    # the names of TEST_CASE_TEMPLATE have some, and it can be escaped.
    if(name MATCHES "[][;\"\\*?]")
        message(FATAL_ERROR "${program_name}: no [ ] ; \" \\ * or ? in the name of a test case, please: ${name}")
    endif()
    string(REPLACE "," "\\," filter "${name}")
    if("${name}" IN_LIST seen)
        message(FATAL_ERROR "${program_name}: two cases have the name '${name}'")
    endif()
    list(APPEND seen "${name}")
    set(timeout_variable case_timeout)
    if(suite STREQUAL "slow")
        set(timeout_variable case_slow_timeout)
    endif()
    string(APPEND script
        "add_test([==[${name}]==] [==[${program}]==] [==[--test-case=${filter}]==] --case-sensitive)\n"
        "set_tests_properties([==[${name}]==] PROPERTIES LABELS \"\${case_labels};${suite}\" TIMEOUT \${${timeout_variable}}\n"
        "    WORKING_DIRECTORY \"\${case_folder}\" ENVIRONMENT \"\${case_environment}\"\n"
        "    FAIL_REGULAR_EXPRESSION \"test cases: +0 \")\n")  # a filter that selects nothing would pass
endforeach()
if(script STREQUAL "")
    message(FATAL_ERROR "${program_name} has no test case")
endif()
file(WRITE "${list_file}" "${script}")
