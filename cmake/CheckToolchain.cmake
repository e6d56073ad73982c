# Turns libc++ on where it is the standard library to use, then proves that the compiler can build Muses, or stops with one clear
# error. Included after project(), also when Muses is part of another project; that project's flags are then left alone.

include(CheckCXXSourceCompiles)

if(NOT DEFINED MUSES_TOOLCHAIN_HELP)
    set(MUSES_TOOLCHAIN_HELP
"  Muses needs a C++23 compiler with <format>, <expected>, <span>, <semaphore> and coroutines: clang 19 or newer with libc++
  (-stdlib=libc++) or with the libstdc++ of gcc 14 or newer, or gcc 14 or newer.")
endif()

block(SCOPE_FOR VARIABLES PROPAGATE MUSES_WITH_LIBCXX)
    file(READ "${CMAKE_CURRENT_LIST_DIR}/probe.cpp" probe)
    set(CMAKE_CXX_STANDARD 23)
    set(CMAKE_CXX_STANDARD_REQUIRED ON)
    set(CMAKE_REQUIRED_QUIET ON)
    set(MUSES_WITH_LIBCXX FALSE)

    if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_SYSTEM_NAME STREQUAL "Linux"
            AND NOT CMAKE_CXX_FLAGS MATCHES "-stdlib=" AND NOT MUSES_USE_LIBCXX STREQUAL "OFF")
        set(CMAKE_REQUIRED_FLAGS "-stdlib=libc++")
        check_cxx_source_compiles("${probe}" MUSES_LIBCXX_WORKS)
        unset(CMAKE_REQUIRED_FLAGS)
        if(MUSES_LIBCXX_WORKS)
            set(MUSES_WITH_LIBCXX TRUE)
        elseif(MUSES_USE_LIBCXX STREQUAL "ON")
            unset(MUSES_LIBCXX_WORKS CACHE)
            message(FATAL_ERROR "MUSES_USE_LIBCXX is ON, but ${CMAKE_CXX_COMPILER} cannot build with libc++.\n${MUSES_TOOLCHAIN_HELP}")
        endif()
    endif()

    if(MUSES_WITH_LIBCXX)
        message(STATUS "Muses: ${CMAKE_CXX_COMPILER} with libc++ (MUSES_USE_LIBCXX=OFF keeps libstdc++)")
    else()
        check_cxx_source_compiles("${probe}" MUSES_TOOLCHAIN_WORKS)
        if(NOT MUSES_TOOLCHAIN_WORKS)
            unset(MUSES_TOOLCHAIN_WORKS CACHE)  # asked again next time: something may be installed by then
            message(FATAL_ERROR
                "${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}) cannot build Muses."
                "\n${MUSES_TOOLCHAIN_HELP}")
        endif()
    endif()
endblock()

if(MUSES_WITH_LIBCXX)
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-stdlib=libc++>")
    add_link_options(-stdlib=libc++)
endif()
