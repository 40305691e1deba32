# Module nccl. Without a GPU it is tested over doubles of its two libraries, which nothing but these tests uses.
add_library(cuda_double SHARED nccl_double/cuda_double.cc)
add_library(nccl_double SHARED nccl_double/nccl_double.cc ${PROJECT_SOURCE_DIR}/src/base/dtype.cc
            ${PROJECT_SOURCE_DIR}/src/base/reduce.cc)
foreach(double cuda_double nccl_double)
  target_include_directories(${double} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
                             ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${double} PRIVATE Threads::Threads)
  set_target_properties(${double} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
endforeach()
target_link_libraries(nccl_double PRIVATE cuda_double)

set(nccl_definitions HVD_NCCL_MODULE="$<TARGET_FILE:hvd_nccl>" HVD_NCCL_DOUBLE="$<TARGET_FILE:nccl_double>"
    HVD_CUDA_DOUBLE="$<TARGET_FILE:cuda_double>")
foreach(subject collectives copies failure library streams)
  hvd_test(backend_nccl_${subject}_test LABEL unit SOURCES nccl_${subject}_test.cc LIBRARIES nccl_double cuda_double)
  target_compile_definitions(backend_nccl_${subject}_test PRIVATE ${nccl_definitions})
  add_dependencies(backend_nccl_${subject}_test hvd_nccl)
endforeach()

# Whole jobs through the public API.
if(TARGET hvd_gloo)
  add_executable(backend_nccl_job_test nccl_job_test.cc)
  target_include_directories(backend_nccl_job_test PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(backend_nccl_job_test PRIVATE hvd nccl_double cuda_double GTest::gtest GTest::gtest_main)
  target_compile_definitions(backend_nccl_job_test PRIVATE ${nccl_definitions}
                             HVD_TEST_MODULE_DIRECTORY="${HVD_MODULE_OUTPUT_DIRECTORY}")
  add_dependencies(backend_nccl_job_test hvd_nccl hvd_gloo)
  add_test(NAME backend_nccl_job_test COMMAND backend_nccl_job_test)
  set_tests_properties(backend_nccl_job_test PROPERTIES LABELS integration TIMEOUT 300)
endif()

# On a machine with a GPU and NCCL. Elsewhere it says so and counts as skipped.
hvd_test(backend_nccl_real_test LABEL integration SOURCES nccl_real_test.cc TIMEOUT 600)
target_compile_definitions(backend_nccl_real_test PRIVATE ${nccl_definitions})
add_dependencies(backend_nccl_real_test hvd_nccl)
set_tests_properties(backend_nccl_real_test PROPERTIES RUN_SERIAL TRUE SKIP_REGULAR_EXPRESSION "no GPU for this test")

# The module's own declarations against the real headers, where there are any.
find_path(HVD_CUDA_INCLUDE_DIR cuda.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
find_path(HVD_NCCL_INCLUDE_DIR nccl.h HINTS ENV NCCL_HOME ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES include)
if(HVD_CUDA_INCLUDE_DIR AND HVD_NCCL_INCLUDE_DIR)
  hvd_test(backend_nccl_headers_test LABEL unit SOURCES nccl_headers_test.cc)
  target_include_directories(backend_nccl_headers_test SYSTEM PRIVATE ${HVD_CUDA_INCLUDE_DIR} ${HVD_NCCL_INCLUDE_DIR})
else()
  message(STATUS "NCCL's and CUDA's headers: not found, so that the module's own declarations are not held against them "
                 "(HVD_CUDA_INCLUDE_DIR, HVD_NCCL_INCLUDE_DIR)")
endif()
