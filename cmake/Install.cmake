# cmake --install, find_package(muses CONFIG), and pkg-config.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/muses")  # share/: nothing here depends on the architecture

install(TARGETS muses EXPORT musesTargets FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT musesTargets NAMESPACE muses:: DESTINATION "${package_dir}")

configure_package_config_file(cmake/musesConfig.cmake.in "${PROJECT_BINARY_DIR}/musesConfig.cmake"
    INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/musesConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/musesConfig.cmake" "${PROJECT_BINARY_DIR}/musesConfigVersion.cmake"
    DESTINATION "${package_dir}")

# The .pc file finds its prefix from where it lies, so that an installed tree can be moved.
set(MUSES_PC_DIR "${CMAKE_INSTALL_DATADIR}/pkgconfig")
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_INCLUDEDIR absolute)
if(absolute)
    set(MUSES_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
    set(MUSES_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
else()
    file(RELATIVE_PATH up "/${MUSES_PC_DIR}" "/")
    cmake_path(SET MUSES_PC_PREFIX NORMALIZE "${up}")
    string(PREPEND MUSES_PC_PREFIX "\${pcfiledir}/")
    string(REGEX REPLACE "/$" "" MUSES_PC_PREFIX "${MUSES_PC_PREFIX}")
    set(MUSES_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/muses.pc.in "${PROJECT_BINARY_DIR}/muses.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/muses.pc" DESTINATION "${MUSES_PC_DIR}")

install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
