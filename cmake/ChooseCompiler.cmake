# Chooses a compiler that can build Muses, when nobody else has chosen one. Included before project(), at top level only.
#
# -DCMAKE_CXX_COMPILER, the environment's CXX and a toolchain file win, and are left alone here. Otherwise the system's default
# compiler is taken when it can do it, and else the first that can of: clang++ with libc++, clang++, g++. "Can" is tried, not
# guessed: cmake/probe.cpp must compile and link. MUSES_COMPILER narrows the search to one family.

set(MUSES_COMPILER "auto" CACHE STRING "Family of compilers to look for when none is named: auto, clang, gcc")
set_property(CACHE MUSES_COMPILER PROPERTY STRINGS auto clang gcc)
set(MUSES_USE_LIBCXX "AUTO" CACHE STRING "libc++ with clang on Linux: AUTO (when it is there), ON, OFF")
set_property(CACHE MUSES_USE_LIBCXX PROPERTY STRINGS AUTO ON OFF)

set(MUSES_TOOLCHAIN_HELP
"  Muses needs a C++23 compiler with <format>, <expected>, <span>, <semaphore> and coroutines. Any of these will do:
    Debian 12:          apt-get install clang-19 libc++-19-dev libc++abi-19-dev libclang-rt-19-dev lld-19
    Debian 13, Ubuntu:  apt-get install g++ (14 or newer; g++-14 where g++ is older)
    macOS:              brew install llvm (19 or newer), or Xcode 16 or newer
  scripts/setup installs what is missing. To choose by hand: -DCMAKE_CXX_COMPILER=…")

# muses_try_compiler(RESULT compiler [flag…]): whether the compiler builds the probe with these flags.
function(muses_try_compiler result compiler)
    separate_arguments(from_user UNIX_COMMAND "$ENV{CXXFLAGS} ${CMAKE_CXX_FLAGS}")
    set(program "${CMAKE_BINARY_DIR}/CMakeFiles/muses-probe")
    file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/CMakeFiles")
    execute_process(
        COMMAND "${compiler}" -std=c++23 ${from_user} ${ARGN} "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/probe.cpp" -o "${program}"
        RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    file(REMOVE "${program}")
    if(failed)
        set(${result} FALSE PARENT_SCOPE)
    else()
        set(${result} TRUE PARENT_SCOPE)
    endif()
endfunction()

function(muses_choose_compiler)
    set(clangs)
    foreach(version RANGE 30 19 -1)
        list(APPEND clangs clang++-${version})
    endforeach()
    list(APPEND clangs clang++)
    set(gccs)
    foreach(version RANGE 24 14 -1)
        list(APPEND gccs g++-${version})
    endforeach()
    list(APPEND gccs g++)

    if(MUSES_COMPILER STREQUAL "gcc")
        set(names ${gccs})
    elseif(MUSES_COMPILER STREQUAL "clang" OR MUSES_USE_LIBCXX STREQUAL "ON")
        set(names ${clangs})
    elseif(MUSES_COMPILER STREQUAL "auto")
        set(names c++ ${clangs} ${gccs})
    else()
        message(FATAL_ERROR "MUSES_COMPILER is '${MUSES_COMPILER}': auto, clang or gcc")
    endif()

    set(tried)
    foreach(name IN LISTS names)
        find_program(found NAMES ${name} NO_CACHE
            HINTS /opt/homebrew/opt/llvm/bin /usr/local/opt/llvm/bin /usr/lib/llvm-19/bin)
        if(NOT found)
            continue()
        endif()
        set(ways "")  # the flags to try, one way after the other; "-" is none
        if(name MATCHES "clang" AND CMAKE_HOST_SYSTEM_NAME STREQUAL "Linux" AND NOT MUSES_USE_LIBCXX STREQUAL "OFF")
            list(APPEND ways -stdlib=libc++)
        endif()
        if(NOT (name MATCHES "clang" AND MUSES_USE_LIBCXX STREQUAL "ON"))
            list(APPEND ways -)
        endif()
        foreach(way IN LISTS ways)
            string(REGEX REPLACE "^-$" "" flags "${way}")
            muses_try_compiler(works "${found}" ${flags})
            if(works)
                if(NOT name STREQUAL "c++")  # the default is CMake's to find, as always
                    message(STATUS "Muses: building with ${found} ${flags}")
                    set(CMAKE_CXX_COMPILER "${found}" CACHE FILEPATH "C++ compiler")
                endif()
                return()
            endif()
        endforeach()
        list(APPEND tried "${found}")
        unset(found)
    endforeach()
    list(JOIN tried ", " tried)
    message(FATAL_ERROR "No compiler here can build Muses (tried: ${tried}).\n${MUSES_TOOLCHAIN_HELP}")
endfunction()

if(NOT DEFINED CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX} AND NOT DEFINED CMAKE_TOOLCHAIN_FILE
        AND NOT DEFINED ENV{CMAKE_TOOLCHAIN_FILE})
    muses_choose_compiler()
endif()
