# How our own tests and programs are built: warnings, sanitizers, linker, link-time optimisation, compiler cache. All of it is on
# the target muses_dev_options, which they link; nothing of it reaches a user of muses::muses.

include(CheckCXXSourceCompiles)
include(CMakePushCheckState)

if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(sanitize_by_default ON)
else()
    set(sanitize_by_default OFF)
endif()
option(MUSES_ENABLE_SANITIZERS "Build tests and programs with MUSES_SANITIZERS (ON by default in Debug)" ${sanitize_by_default})
set(MUSES_SANITIZERS "address,undefined" CACHE STRING "Which sanitizers: what -fsanitize= takes")
option(MUSES_WERROR "Warnings are errors in our own tests and programs" OFF)
option(MUSES_ENABLE_LTO "Link-time optimisation, where the toolchain can do it" OFF)
option(MUSES_USE_CCACHE "Compile through ccache when it is installed" ON)

add_library(muses_dev_options INTERFACE)
target_link_libraries(muses_dev_options INTERFACE muses::muses)
target_compile_options(muses_dev_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(MUSES_WERROR)
    target_compile_options(muses_dev_options INTERFACE -Werror)
endif()
# The standard libraries' own checks of their callers: bounds, empty optionals, comparators.
target_compile_definitions(muses_dev_options INTERFACE
    $<$<CONFIG:Debug>:_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_EXTENSIVE>
    $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)

# muses_check_link(RESULT flag…): whether a program links with these flags.
function(muses_check_link result)
    cmake_push_check_state(RESET)
    set(CMAKE_REQUIRED_QUIET ON)
    set(CMAKE_REQUIRED_FLAGS "${ARGN}")
    set(CMAKE_REQUIRED_LINK_OPTIONS ${ARGN})
    if(MUSES_WITH_LIBCXX)
        string(APPEND CMAKE_REQUIRED_FLAGS " -stdlib=libc++")
    endif()
    check_cxx_source_compiles("int main() { return 0; }" ${result})
    cmake_pop_check_state()
endfunction()

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT CMAKE_CXX_FLAGS MATCHES "-fuse-ld=")
    muses_check_link(MUSES_LLD_WORKS -fuse-ld=lld)
    if(MUSES_LLD_WORKS)
        target_link_options(muses_dev_options INTERFACE -fuse-ld=lld)
    endif()
endif()

if(MUSES_ENABLE_SANITIZERS)
    string(MAKE_C_IDENTIFIER "MUSES_SANITIZER_WORKS_${MUSES_SANITIZERS}" works)
    muses_check_link(${works} -fsanitize=${MUSES_SANITIZERS})
    if(NOT ${works})
        unset(${works} CACHE)
        message(FATAL_ERROR
            "${CMAKE_CXX_COMPILER} cannot link with -fsanitize=${MUSES_SANITIZERS}.\n"
            "  Its run-time library is a package of its own, for example libclang-rt-19-dev for clang-19; scripts/setup installs it.\n"
            "  To build without: -DMUSES_ENABLE_SANITIZERS=OFF")
    endif()
    target_compile_options(muses_dev_options INTERFACE
        -fsanitize=${MUSES_SANITIZERS} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    if(MUSES_SANITIZERS MATCHES "thread")
        # ThreadSanitizer is slow without. With the others, compiling would take four times as long, for tests that are quick anyway.
        target_compile_options(muses_dev_options INTERFACE $<$<CONFIG:Debug>:-O1>)
    endif()
    target_link_options(muses_dev_options INTERFACE -fsanitize=${MUSES_SANITIZERS})
endif()

if(MUSES_ENABLE_LTO)
    include(CheckIPOSupported)
    set(linker "")
    if(MUSES_LLD_WORKS)
        set(CMAKE_REQUIRED_LINK_OPTIONS -fuse-ld=lld)
    endif()
    check_ipo_supported(RESULT MUSES_LTO_WORKS OUTPUT why LANGUAGES CXX)
    if(MUSES_LTO_WORKS)
        set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ON)
    else()
        message(STATUS "Muses: no link-time optimisation with this toolchain")
    endif()
endif()

if(MUSES_USE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(MUSES_CCACHE ccache)
    mark_as_advanced(MUSES_CCACHE)
    if(MUSES_CCACHE)
        set(CMAKE_CXX_COMPILER_LAUNCHER "${MUSES_CCACHE}")
    endif()
endif()
