# muses_header_dependency(NAME <name> TARGET <ns::target> HEADER <path> INCLUDE_DIR <dir> URL <url> SHA256 <hash>)
#
# A header-only library that our own tests or programs use (the headers of Muses use none): the installed package when
# find_package finds one, else the pinned archive, fetched while configuring. -DFETCHCONTENT_SOURCE_DIR_<NAME>=<tree> uses a local
# copy instead of the network. Of a fetched tree only the headers are used, not its build files, which may ask for a CMake policy
# that this CMake no longer has.
include(FetchContent)

function(muses_header_dependency)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TARGET;HEADER;INCLUDE_DIR;URL;SHA256" "")
    if(TARGET ${arg_TARGET})
        return()
    endif()
    FetchContent_Declare(${arg_NAME}
        URL "${arg_URL}"
        URL_HASH SHA256=${arg_SHA256}
        DOWNLOAD_EXTRACT_TIMESTAMP OFF
        SOURCE_SUBDIR headers-only  # there is no such folder: nothing of the tree is configured
        FIND_PACKAGE_ARGS CONFIG)
    FetchContent_MakeAvailable(${arg_NAME})
    if(TARGET ${arg_TARGET})
        return()
    endif()
    string(TOLOWER ${arg_NAME} lower)
    set(include_dir "${${lower}_SOURCE_DIR}/${arg_INCLUDE_DIR}")
    if(NOT EXISTS "${include_dir}/${arg_HEADER}")
        message(FATAL_ERROR "${arg_NAME}: no ${arg_HEADER} in ${include_dir}")
    endif()
    message(STATUS "Muses: ${arg_NAME} from ${${lower}_SOURCE_DIR}")
    add_library(muses_dep_${lower} INTERFACE)
    target_include_directories(muses_dep_${lower} SYSTEM INTERFACE "${include_dir}")
    add_library(${arg_TARGET} ALIAS muses_dep_${lower})
endfunction()
