# What `cmake --install` puts where. The layout is that of the build tree, so the library finds its
# modules and its guard beside itself wherever the tree is moved to:
#   include/hvd/*.h  lib/libhvd.so.<abi>  lib/hvd/<abi>/{libhvd_<backend>.so,hvd-driver.so,hvd-guard}
#   bin/hvdrun  lib/pkgconfig/hvd.pc  lib/cmake/hvd/*
# Components: runtime (the library, its modules, the guard), tools (hvdrun), devel (what a build needs), and
# one for each module that needs libraries which not everybody wants (src/modules: hvd_component).
include(CMakePackageConfigHelpers)

set(HVD_INSTALL_MODULE_DIR ${CMAKE_INSTALL_LIBDIR}/${HVD_MODULE_SUBDIR})
set(HVD_INSTALL_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/hvd)

install(TARGETS hvd EXPORT hvdTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT devel)
install(FILES include/hvd/hvd.h include/hvd/async.h include/hvd/connect.h include/hvd/direct.h include/hvd/sampler.h include/hvd/shards.h
              include/hvd/driver.h include/hvd/backend.h include/hvd/backend.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hvd COMPONENT devel)
# The same as data, for whoever makes a binding.
install(FILES scripts/api/api.json DESTINATION ${CMAKE_INSTALL_DATADIR}/hvd COMPONENT devel)

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libhvd${HVD_ABI_VERSION} RENAME copyright COMPONENT runtime)

# Everything that a job needs at run time, in one target to build. hvdrun, hvd-guard and the modules say in
# their own directories how they are installed.
add_custom_target(runtime)
get_property(modules GLOBAL PROPERTY HVD_RUNTIME_TARGETS)
foreach(target hvd hvd_driver hvdrun hvd_guard hvd_tcp hvd_gloo hvd_nccl hvd_lightgbm ${modules})
  if(TARGET ${target})
    add_dependencies(runtime ${target})
  endif()
endforeach()

# pkg-config: paths are relative to the .pc file.
file(RELATIVE_PATH HVD_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" HVD_PC_PREFIX "${HVD_PC_PREFIX}")
configure_file(pkgconfig/hvd.pc.in ${PROJECT_BINARY_DIR}/hvd.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/hvd.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)

# CMake: find_package(hvd) gives hvd::hvd.
install(EXPORT hvdTargets NAMESPACE hvd:: DESTINATION ${HVD_INSTALL_PACKAGE_DIR} COMPONENT devel)
configure_package_config_file(cmake/hvdConfig.cmake.in ${PROJECT_BINARY_DIR}/hvdConfig.cmake
  INSTALL_DESTINATION ${HVD_INSTALL_PACKAGE_DIR} PATH_VARS HVD_INSTALL_MODULE_DIR)
# Before 1.0 a minor version may change the ABI.
set(HVD_COMPATIBLE SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(HVD_COMPATIBLE SameMinorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hvdConfigVersion.cmake COMPATIBILITY ${HVD_COMPATIBLE})
install(FILES ${PROJECT_BINARY_DIR}/hvdConfig.cmake ${PROJECT_BINARY_DIR}/hvdConfigVersion.cmake
        DESTINATION ${HVD_INSTALL_PACKAGE_DIR} COMPONENT devel)
