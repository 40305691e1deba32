# The library of the build tree by pkg-config, for Go's and Rust's tools.
set(HVD_BINDING_PC_DIR ${PROJECT_BINARY_DIR}/bindings/pkgconfig)
file(CONFIGURE OUTPUT ${HVD_BINDING_PC_DIR}/hvd.pc @ONLY CONTENT [[
libdir=@CMAKE_LIBRARY_OUTPUT_DIRECTORY@
Name: hvd
Description: @PROJECT_DESCRIPTION@ (build tree)
Version: @PROJECT_VERSION@
Cflags: -I@PROJECT_SOURCE_DIR@/include
Libs: -L@CMAKE_LIBRARY_OUTPUT_DIRECTORY@ -lhvd
]])

# hvd_tool_test(name TOOL found|NOTFOUND DIRECTORY dir ENVIRONMENT ... COMMAND ...): skipped if the tool is
# not there.
function(hvd_tool_test name)
  cmake_parse_arguments(arg "" "TOOL;TOOL_NAME;DIRECTORY;TIMEOUT;LOCK" "ENVIRONMENT;COMMAND" ${ARGN})
  if(arg_TOOL)
    add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${arg_DIRECTORY})
  else()
    add_test(NAME ${name} COMMAND sh -c "echo skipped: ${arg_TOOL_NAME} is not installed; exit 77")
  endif()
  get_filename_component(directory "${arg_TOOL}" DIRECTORY)
  set_tests_properties(${name} PROPERTIES LABELS binding TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
    RESOURCE_LOCK ${arg_LOCK} ENVIRONMENT
    "PKG_CONFIG_PATH=${HVD_BINDING_PC_DIR};LD_LIBRARY_PATH=${CMAKE_LIBRARY_OUTPUT_DIRECTORY};HVD_PLUGIN_PATH=${HVD_MODULE_OUTPUT_DIRECTORY};HVD_TEST_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};${arg_ENVIRONMENT}"
    ENVIRONMENT_MODIFICATION "PATH=path_list_prepend:${directory}")
endfunction()
